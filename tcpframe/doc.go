// Package tcpframe carries record-marked RPC (RFC 5531 Section 11) over TCP,
// on event loops that never block.
//
// # Operation
//
// An [Engine] runs N loops, one goroutine each. A [Listener] accepts in a
// goroutine of its own, refuses what it must, and gives each connection to the
// loop that has the fewest. A [Conn] cuts the stream into records, copies each
// one once, into a [Buffer] lent by [Memory], and hands it to its
// [RecordHandler]; replies go the other way as gather writes, one writev per
// loop pass. A [Loop] also drives raw sockets, for RDMA providers that work
// over TCP: [Loop.Attach], [Stream], [Socket] mirror the interfaces of package
// fabric method by method, so that neither package knows the other.
//
// # Ownership
//
// A connection belongs to one loop for its whole life. Every method of Conn and
// Socket, and every callback, runs on that loop, except where a comment says
// OffLoop or "any goroutine". Loop.Post is how others get there.
//
// # Backpressure
//
// A connection stops reading from its socket while its owner asked for it, while
// Memory has nothing to lend, and while its peer does not take what is queued
// for it. It then holds what one read had brought already, at most 64 KiB, and
// parses none of it.
//
// # Passes
//
// A pass is one callback from the engine: bytes arrived on one socket, or
// something was posted. What was asked for during the pass (writes, pausing,
// closing, Stream.Flush) happens once, at its end.
package tcpframe
