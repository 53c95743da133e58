package metrics

// tenantLabel is the label of the metrics of tenants. The configuration bounds its values.
var tenantLabel = Label{Name: "tenant", Help: "the tenant's name in the configuration"}

var ofTenant = []Label{tenantLabel}

// Tenants.
var (
	TenantClients = gauge(Definition{
		Name: "tenant_clients", Labels: ofTenant,
		Help: "Client connections of the tenant.",
		Like: "HAProxy: conn_cur of a stick table",
	})
	TenantAddresses = gauge(Definition{
		Name: "tenant_addresses", Labels: ofTenant,
		Help: "Addresses of the tenant that have connections, or Calls under way.",
	})
	TenantOutstandingCalls = gauge(Definition{
		Name: "tenant_outstanding_calls", Labels: ofTenant,
		Help: "Calls of the tenant's clients that were read and are not answered yet.",
	})
	TenantMemoryBytes = gauge(Definition{
		Name: "tenant_memory_bytes", Labels: ofTenant,
		Help: "Memory that counts for the tenant: of Calls under way, of their Replies, which are counted as they are expected until they have come, and of incomplete Calls.",
	})
	TenantWaitingClients = gauge(Definition{
		Name: "tenant_waiting_clients", Labels: tenantAnd(tenantLimit),
		Help: "Client connections that the bridge does not read from at present because of a limit of the tenant, by limit.",
	})
	TenantWaits = counter(Definition{
		Name: "tenant_waits_total", Labels: tenantAnd(tenantLimit),
		Help: "Times that the bridge stopped reading from a client because of a limit of its tenant, by limit.",
	})
	TenantRefusedConnections = counter(Definition{
		Name: "tenant_refused_connections_total", Labels: tenantAnd(Label{Name: "reason", Help: "which limit", Values: []Value{
			{"connections", "the tenant has as many connections as it may"},
			{"connections_per_address", "the address has as many connections as it may have in the tenant"},
			{"rate", "too many new connections of the tenant came in a second"},
			{"rate_per_address", "too many new connections of the address came in a second"},
		}}),
		Help: "Connections of the tenant that the bridge refused because of a limit of the tenant, by reason.",
	})
	TenantCalls = counter(Definition{
		Name: "tenant_calls_total", Labels: ofTenant,
		Help: "Calls of the tenant's clients that were answered.",
	})
	TenantBytes = counter(Definition{
		Name: "tenant_bytes_total", Labels: tenantAnd(Label{Name: "direction", Help: "from the client, or to it", Values: []Value{
			{"in", "of Calls"},
			{"out", "of Replies"},
		}}),
		Help: "Bytes of the tenant's answered Calls, and of their Replies.",
	})
)

// tenantLimit labels the metrics of clients that wait.
var tenantLimit = Label{Name: "limit", Help: "which limit", Values: []Value{
	{"total", "the Calls under way, or the memory, of the whole tenant"},
	{"address", "those of the client's address"},
	{"total_rate", "the rate of the whole tenant"},
	{"address_rate", "the rate of the client's address"},
	{"memory", "the memory for incomplete Calls, of the tenant or of the address"},
}}

// tenantAnd returns the labels of a metric of tenants that has one more.
func tenantAnd(more ...Label) []Label { return append([]Label{tenantLabel}, more...) }
