package proxy

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// A connOwner has a connection to a server that not every client's Calls may take: a [pin] or a
// [laneConn]. The shared connections have none. Methods run on the connection's loop, unless they
// say otherwise.
type connOwner interface {
	// callBackRDMA does what callBack does, for a connection over RDMA.
	callBackRDMA(from reverser, m *regmem.Lease) bool
	// callBack brings a client the plain RPC Call m, which came on the connection from. It keeps m
	// until it calls done.Release. If it reports false, m remains the caller's, and the caller
	// refuses the Call.
	callBack(from reverser, m []byte, done releaser) bool
	// mostCallBacks is how many reverse Calls may be outstanding. Any goroutine.
	mostCallBacks() int
	// carries reports whether the connection may carry c, which it is about to send.
	carries(c *call) bool
	// keeps reports whether the connection goes on although the server has not answered c in time and
	// has answered later Calls. late is how many such Calls the connection has, c included, and grant
	// how many Calls it may have in all.
	keeps(c *call, late, grant int) bool
	// answered is called when the server has answered for the first time, and may not be called at all.
	answered()
	// ended is called when the connection has ended with err.
	ended(err error)
	// receives is how many Receives are posted on the connection while it is idle, and how many of its
	// reverse Calls may be outstanding. It is for connections over RDMA. Any goroutine.
	receives() (idle, reverse int)
	// ports is the number from which the first source port follows. Any goroutine.
	ports() uint64
	// names appends the PROXY header of a connection, which names the owner's client if it has just one.
	// Any goroutine.
	names(b []byte) []byte
}
