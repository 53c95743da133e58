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
	MemoryAccountLimitBytes = gauge(Definition{
		Name: "memory_account_limit_bytes", Labels: []Label{accountLabel},
		Help: "Most bytes that one account may use.",
	})
	MemoryAccountPeakBytes = gauge(Definition{
		Name: "memory_account_peak_bytes", Labels: []Label{accountLabel},
		Help: "Most bytes that one account has used so far, with what event loops kept for their next messages.",
	})
	MemoryAccountWaitingConnections = gauge(Definition{
		Name: "memory_account_waiting_connections", Labels: []Label{accountLabel},
		Help: "Connections that wait for memory of one account.",
	})
	MemoryAccountRefusedLeases = counter(Definition{
		Name: "memory_account_refused_leases_total", Labels: []Label{accountLabel},
		Help: "Times that one account had no memory for a message.",
		Like: "Envoy: overload manager, reset_high_memory_stream",
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
