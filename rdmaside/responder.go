package rdmaside

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/ulb"
)

// ResponderOptions configure the connections of a Responder. Zero is the
// default.
type ResponderOptions struct {
	// Memory is where Receive buffers and Calls are leased. Required.
	Memory *regmem.Account
	// Registry finds what may be reduced. Required.
	Registry *ulb.Registry

	// Credits are granted to each connection; default 64, at most 16384.
	Credits int
	// CallInline and ReplyInline are the inline thresholds offered, in octets;
	// default 4096, from 1024 to 64 KiB in steps of 1024.
	CallInline, ReplyInline int
	// MaxCall bounds a plain Call in octets; default 4 MiB + 64 KiB.
	MaxCall int
	// ORD is how many RDMA Reads may be outstanding on a connection; default 16.
	ORD int
	// SpareReceives are posted beyond the credits, so that an overrun is seen here
	// rather than below; default 2.
	SpareReceives int
	// RemoteInvalidation allows Send With Invalidate towards Requesters that ask
	// for it.
	RemoteInvalidation bool

	Log     zerolog.Logger
	Metrics *ResponderMetrics // shared by the connections; may be nil
}

// A CallHandler takes Calls. It may also be a ConnHandler.
type CallHandler interface {
	// Call hands over x, on the loop of its connection. x is ended by exactly one
	// of its methods Reply and Abort, on that loop, inside Call or later, also
	// when the connection has ended meanwhile.
	Call(x *Exchange)
}

// A ConnHandler is a CallHandler that is told of connections. Methods run on
// the connection's loop.
type ConnHandler interface {
	// Opened comes before the first Call of c.
	Opened(c *ResponderConn)
	// Ended comes after the last. Exchanges of c that are not ended yet remain
	// the handler's to end.
	Ended(c *ResponderConn, err error)
}

// A Releaser is what octets are given back through.
type Releaser interface{ Release() }

// A Responder accepts connections and answers Calls: the Responder role of
// RFC 8166.
type Responder struct{}

// NewResponder returns a Responder whose Calls go to h.
func NewResponder(o ResponderOptions, h CallHandler) (*Responder, error) { return &Responder{}, nil }

// Accept answers in and hands the connection to loop. It blocks until the
// connection is set up and may be called on any goroutine but a loop's, as
// fabric.Listener's incoming function is.
func (s *Responder) Accept(ctx context.Context, in fabric.Incoming, loop fabric.Loop) (*ResponderConn, error) {
	return nil, ErrClosed
}

// A ResponderConn is one connection of a Responder. It belongs to one loop;
// methods are for that loop unless they say otherwise.
type ResponderConn struct {
	// Data is the handler's.
	Data any
}

// Info describes the connection. It may be called on any goroutine.
func (c *ResponderConn) Info() fabric.Info { return fabric.Info{} }

// Loop is the loop that owns c. It may be called on any goroutine.
func (c *ResponderConn) Loop() fabric.Loop { return nil }

// Outstanding is how many Calls are not answered. It may be called on any
// goroutine.
func (c *ResponderConn) Outstanding() int { return 0 }

// Close ends the connection. A nil err lets Replies that were posted go out.
func (c *ResponderConn) Close(err error) {}
