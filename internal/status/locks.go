package status

// Locks are what the bridge's lock manager knows of clients of NFSv3.
type Locks struct {
	Server  string        `json:"server"`  // name or address of the storage
	Held    int           `json:"held"`    // ranges of files that clients have locked
	Waiting int           `json:"waiting"` // ranges that they wait for
	Clients int           `json:"clients"` // addresses that have at least one of them
	Most    []ClientLocks `json:"most"`    // those clients that have the most
}

// ClientLocks are what one client has of Locks.
type ClientLocks struct {
	Address string `json:"address"`
	Held    int    `json:"held"`
	Waiting int    `json:"waiting"`
}
