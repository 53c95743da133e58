package identity

// An OrderedCall is a Call that keeps its order.
type OrderedCall interface {
	Transmitted
	// OpenFlow returns the Flow of a context that has no Call yet: old, which another context had, or one of its own if
	// old is nil or does not suit.
	OpenFlow(old Flow) Flow
	// Join says that the Call is of the context with the Flow f. It reports whether the Call will wait in f, and not
	// on the lane of its client.
	Join(f Flow) bool
	// Submit gives the Call, whose turn it is, to its pool, or ends it. here is the number of the calling loop, or
	// loop.Elsewhere.
	Submit(here int)
}

// A Flow is where the Calls of a context wait for a connection. Kick alone is called without a lock of the context,
// and the other methods call nothing of this package.
type Flow interface {
	// Follow keeps the next Calls on the connection that has sent last, a Call of the Flow. With nil they may use
	// any connection. None waits in the Flow.
	Follow(last OrderedCall)
	// Unbind lets the Call that waits in the Flow use any connection. If it reports true, Kick follows.
	Unbind() (moved bool)
	// Kick dispatches what Unbind has moved. here is the number of the calling loop, or loop.Elsewhere.
	Kick(here int)
}

// GSSOptions are what the contexts of an upstream go by.
type GSSOptions struct {
	Window func() int   // how many Calls of a context may be outstanding now
	Now    func() int64 // the time in nanoseconds
	Full   func()       // counts a Call for which the window had no room
}
