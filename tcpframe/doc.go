// Package tcpframe carries RPC messages over TCP as record-marked streams, RFC 5531
// Section 11, on event loops that never block.
//
// # Operation
//
// An [Engine] runs a number of loops, each on one goroutine. A [Listener] accepts
// connections on a goroutine of its own, closes those that its limits do not allow, and
// gives each of the others to the loop that drives the fewest sockets. A [Conn] splits
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
// A connection stops reading from its socket while its owner has paused it, while
// Memory has nothing to lend, and while the peer does not read what is queued for it.
// It holds the octets that had been read before that, at most 128 KiB, and does not
// parse them.
//
// # TLS
//
// [Conn.StartTLS] switches a connection to TLS 1.3 behind a record. The handshake runs on a goroutine of its
// own, one of a bounded number. After it no goroutine is left: the loop decrypts what the socket
// brings, and encrypts what is queued, a bounded share in each pass. tls.go says which file does what.
//
// # Passes
//
// A pass begins when sockets are ready, or when a task was posted. It serves the sockets that
// are ready together, until it has read 64 KiB. Everything that is requested during the pass
// (writing, pausing, closing, Stream.Flush) happens once, at the end of the pass. poll.go has the passes,
// and gnet.go says what gnet does.
package tcpframe
