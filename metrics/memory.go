package metrics

// The memory of messages.
var (
	MemoryBudgetBytes = gauge(Definition{
		Name: "memory_budget_bytes",
		Help: "Memory budget of messages: most bytes that they may use (memory.budget).",
	})
	MemoryUsedBytes = gauge(Definition{
		Name: "memory_used_bytes",
		Help: "Bytes of the memory budget in use by messages.",
		Like: "Envoy: server.memory_allocated",
	})
	MemoryResidentBytes = gauge(Definition{
		Name: "memory_resident_bytes",
		Help: "Bytes of the memory budget that are resident in RAM.",
		Like: "Envoy: server.memory_physical_size",
	})
	MemoryWaitingConnections = gauge(Definition{
		Name: "memory_waiting_connections",
		Help: "Connections that wait for memory, besides those that wait for memory for Calls.",
	})
	MemoryAccountUsedBytes = gauge(Definition{
		Name: "memory_account_used_bytes", Labels: []Label{accountLabel},
		Help: "Bytes of the memory budget in use by one account.",
	})
	CallMemoryWaits = counter(Definition{
		Name: "call_memory_waits_total",
		Help: "Times that a client had to wait for memory for a Call.",
	})
	CallMemoryWaitingConnections = gauge(Definition{
		Name: "call_memory_waiting_connections",
		Help: "Client connections that wait for memory for a Call.",
	})
)

var accountLabel = Label{Name: "account", Help: "part of the memory, such as calls, replies or receives"}
