package admit

import "net/netip"

// A Population is all clients of the bridge.
type Population interface {
	// Weigh calls see for each client, on the client's loop, and then done with those for which see has returned
	// more than 0. Any goroutine.
	Weigh(see func(g *Client, s Sender) int64, done func(found []Burden))
}

// A Sender is a client that slowSenders looks at, on the client's loop.
type Sender interface {
	// Sending says what the client sends now.
	Sending() Sending
}

// A Burden is a client that holds so many octets of memory too long.
type Burden struct {
	Client   *Client
	Held     int64 // octets
	Listener string
	Peer     netip.AddrPort
}
