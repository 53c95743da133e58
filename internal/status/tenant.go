package status

// A Tenant is a group of clients with limits of its own.
type Tenant struct {
	Name      string            `json:"name"`
	Clients   int               `json:"clients"`   // connections
	Addresses int               `json:"addresses"` // that have connections, or Calls under way
	InFlight  int               `json:"in_flight"` // Calls read and not yet answered
	Memory    int64             `json:"memory"`    // bytes of Calls under way, their Replies and incomplete Calls
	Calls     uint64            `json:"calls"`     // answered, so far
	Traffic                     // of these, so far
	Waiting   map[string]int    `json:"waiting"`        // connections that the bridge does not read from at present because of the tenant, by limit
	Waits     map[string]uint64 `json:"waits"`          // times that the bridge stopped reading from a client so far, by limit
	Refused   map[string]uint64 `json:"refused"`        // connections refused so far, by reason
	Total     TenantLimits      `json:"total_limits"`   // of the whole tenant
	Address   TenantLimits      `json:"address_limits"` // of each of its addresses
}

// TenantLimits are the limits in force. 0 is none.
type TenantLimits struct {
	Connections        int   `json:"connections"`
	ConnectionsASecond int   `json:"connections_per_second"`
	Calls              int   `json:"calls"`
	Memory             int64 `json:"memory"`
	CallsASecond       int   `json:"calls_per_second"`
	BytesASecond       int64 `json:"bytes_per_second"`
}
