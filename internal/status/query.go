package status

// A Query says what a Document is to have. The zero Query asks for 50 clients and no connections of
// upstreams.
type Query struct {
	// Clients is the most clients that are listed: 0 for 50, and a negative number for all, up to
	// MostClients.
	Clients int
	// Sort is the order of the clients, one of Sorts; "" is SortWaiting.
	Sort string
	// Filter keeps the clients whose address, listener, upstream or transport contains it, in
	// whatever case; or those whose address is in it, if it is a network such as 192.0.2.0/24.
	Filter string
	// Connections asks for the connections of the upstreams.
	Connections bool
	// Names asks for a [Names] beside the Document, and NamesOf for what is of one export alone.
	Names   bool
	NamesOf string
	// Minutes is how long the Names are about; 0 for 1.
	Minutes int
}

// MostClients bounds the clients that a Document lists.
const MostClients = 10_000

// The orders of clients. In each, those come first that an operator wants to see first. Clients that
// are alike there are in the order of SortWaiting, and of SortAddress in the end.
const (
	SortWaiting = "waiting" // those that the bridge does not read from, then those with most unread Replies, then by SortOldest
	SortBytes   = "bytes"   // the most bytes in and out
	SortOldest  = "oldest"  // the oldest Call in flight
	SortCalls   = "calls"   // the most Calls
	SortAddress = "address"
)

// Sorts are the orders of clients.
var Sorts = []string{SortWaiting, SortBytes, SortOldest, SortCalls, SortAddress}

// Most returns how many clients q asks for.
func (q *Query) Most() int {
	switch {
	case q.Clients == 0:
		return 50
	case q.Clients < 0:
		return MostClients
	}
	return min(q.Clients, MostClients)
}
