// Package eventloop answers one question: when does which code run for a socket? It has event loops, gnet's, and the
// sockets on them.
//
// # Operation
//
// A [Group] runs a number of loops with one clock. Each [Loop] is one goroutine, which gnet runs: gnet waits for
// the sockets, reads, and calls. A [Socket] belongs to a loop for its whole life, and its owner, a
// loop.Stream, hears of it there. gnet.go says what gnet does, and what it does not do.
//
// # Passes
//
// A pass begins when sockets are ready, or when a task was posted. It serves the sockets that
// are ready together, until it has read 64 KiB. Everything that is requested during the pass
// (writing, pausing, closing, Stream.Flush) happens once, at the end of the pass. loop.go has the passes.
//
// # Ownership
//
// Every method of a Socket, and every method of its Stream, runs on the loop, unless its comment says otherwise.
// [Loop.Post] brings the work of other goroutines to the loop.
//
// # Pausing
//
// gnet cannot pause a socket. A socket that must not be read from stays with gnet while its peer is silent. When
// octets come nevertheless, it leaves its loop and comes back later: away.go.
package eventloop
