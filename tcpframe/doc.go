// Package tcpframe carries RPC messages over TCP as record-marked streams, RFC 5531
// Section 11, on event loops that never block.
//
// # Operation
//
// An [Engine] runs the loops of package eventloop, each on one goroutine. A [Listener] accepts
// connections on a goroutine of its own, closes those that its limits do not allow, and
// gives each of the others to the loop that drives the fewest sockets. gnet's own acceptor
// would stop all loops when descriptors run out once, and has one set of listeners for ever. A [Conn] splits
// the stream into records, copies each record once, into a [Buffer] lent by [Memory],
// and passes it to its [RecordHandler]. Records in the other direction are queued, and
// one writev sends all those that a pass has queued for a connection. A [Loop] also
// drives plain sockets, for RDMA providers that work over TCP: it implements
// loop.SocketLoop.
//
// # Ownership
//
// One loop owns a connection for its whole life. Every method of Conn and of a socket,
// and every callback, runs on that loop, unless its comment says "any goroutine".
// [Loop.Post] brings other goroutines' work to the loop.
//
// # Backpressure
//
// A connection stops parsing while its owner has paused it, while
// Memory has nothing to lend, and while the peer does not read what is queued for it.
// It holds the octets that had been read before that, at most 128 KiB, and when the peer
// sends more its socket leaves the loop until it reads again. What the kernel does not
// take of the queue waits until the loop says that there is room.
//
// # TLS
//
// [Conn.StartTLS] switches a connection to TLS 1.3 behind a record. The handshake runs on a goroutine of its
// own, one of a bounded number. After it no goroutine is left: the loop decrypts what the socket
// brings, and encrypts what is queued, a bounded share in each pass. tls.go says which file does what.
package tcpframe
