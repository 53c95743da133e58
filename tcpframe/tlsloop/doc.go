// Package tlsloop answers one question: how does crypto/tls run on an event loop, although it blocks inside a handshake?
//
// # Operation
//
// A [Handshake] runs on a goroutine of its own, and its octets pass a pipe between the loop and that goroutine. A
// [Queue] bounds how many of them there are, is fair between hosts, and lets those give way that wait for their peers.
// crypto/tls reads and writes a [Wire]: through the pipe during the handshake, and afterwards on the loop, where it
// returns a temporary error instead of blocking.
//
// # Ownership
//
// A Wire belongs to the goroutine of the handshake until the owner hears, on its loop, that the handshake is done. From
// then on it belongs to the loop. The methods of a Handshake are for the loop, unless their comments say otherwise.
package tlsloop
