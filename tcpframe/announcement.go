package tcpframe

import (
	"errors"
	"net/netip"
)

// Proxies
//
// A proxy that passes a client's connection on says who the client is in the first octets, a PROXY
// header. Only the addresses of ListenOptions.Proxies are asked for one. What any other peer sends is
// records from its first octet on, so that nobody else can choose an address: a header would be a
// record mark that announces hundreds of megabytes, and ends the connection.
//
// A connection of a proxy begins in the state announcing. It is not a client's yet: it has no handler,
// holds no more than the header, and ends when the header has not come in time. Meanwhile it counts for
// the proxy alone. When the header is there, the connection is admitted like one that the client
// has made itself: allow list, privileged ports, limits and eviction look at the client. Opened comes
// then, and the octets behind the header are the client's.
//
// A proxy's own connections, with which it looks whether this side is there, have a header that names
// no client. They are admitted as the proxy's.

// Bounds of the connections without a header. Proxies send it at once, so there are few of them, except
// when all clients come back at the same time.
const (
	mostStartsPerProxy = 1024
	// spareSockets is how many sockets beyond the limit of Engine.Sockets are open without a header. Only
	// the header says for whom another connection has to give way.
	spareSockets = 32
)

var errNoHeader = errors.New("tcpframe: the proxy did not send a PROXY header in time")

// An announcement is what a proxy says about a connection, or is to say.
type announcement struct {
	client   netip.AddrPort // constant after Opened; the zero AddrPort if the header names none
	due      int64          // time by which the header has to be there; constant
	begun    []byte         // the header, while it is incomplete
	admitted bool           // the connection is a client's
}
