package gates

import "github.com/rdmabridge/rdmabridge/internal/loop"

// A Conn is a client's connection, as far as this package acts on it.
type Conn interface {
	// Gone reports whether the connection has ended. Any goroutine.
	Gone() bool
	// Post runs t on the client's loop. Any goroutine.
	Post(t loop.Task)
	// Close ends the connection. Any goroutine.
	Close(reason error)
	// Resume reads from the client again, unless it still has to wait. On the client's loop.
	Resume()
}
