// Package fabric defines the RDMA operations that RPC-over-RDMA needs: connections with
// private data, Send and Receive, RDMA Read and Write, registration and invalidation of
// memory, and completions. A provider implements [Provider], and may implement the
// abilities that abilities.go lists.
//
// # Ownership
//
// A connection belongs to one [loop.Loop]: every method of [Conn] is called on that
// loop's goroutine, and every method of its [Handler] runs there. These methods do not
// block. A provider whose work completes elsewhere (a completion queue with a
// goroutine of its own) posts its completions to the loop in batches.
//
// Memory given to a Conn comes from an arena of package regmem, so that a
// provider that must pin memory can do so once per arena. From post to
// completion the provider owns the bytes. Until then the poster must not write to them,
// nor read bytes that the peer may be writing.
//
// # Errors
//
// A posting method that returns an error has posted nothing. Once a
// connection has failed, every posted Work Request completes with an error
// that wraps [ErrFlushed], then Handler.Closed is called, once and last.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

var (
	// ErrFlushed is wrapped by the completions of Work Requests that did not complete
	// before their connection ended.
	ErrFlushed = errors.New("fabric: flushed")
	// ErrClosed is returned by posting to a connection that has ended.
	ErrClosed = errors.New("fabric: connection closed")
	// ErrRejected is wrapped by Dial's error when the peer rejected the connection.
	ErrRejected = errors.New("fabric: connection rejected by peer")
	// ErrNoRDMA is wrapped by Dial's error when there is something at the address that accepts connections, and it
	// does not answer as RDMA does. It may serve something else there, such as NFS over TCP.
	ErrNoRDMA = errors.New("the server accepts TCP connections at this port and does not answer to RDMA over iWARP")
	// ErrQueueFull is returned by posting beyond the depth asked for at
	// connection set-up.
	ErrQueueFull = errors.New("fabric: work queue full")
	// ErrLimit is wrapped by the error of an operation that would exceed a limit of the
	// provider: connections, handles, or registered bytes.
	ErrLimit = errors.New("fabric: limit reached")
	// ErrTooLong is wrapped, beside ErrFlushed, by the completion of a Receive whose buffer was too short for the
	// peer's Send. That ends the connection. Completion.Bytes says how many of the Send's first octets are in the
	// buffer. A provider that does not know them completes the Receive as one that was flushed.
	ErrTooLong = errors.New("fabric: message longer than the receive")
	// ErrSilent ends a connection whose peer's host no longer answers. A peer whose
	// process is slow or stopped does not cause it.
	ErrSilent = errors.New("fabric: peer's host is silent")
)

// A Handle names registered memory for the peer: the STag of iWARP, the R_key of
// InfiniBand. No registration has handle 0.
type Handle uint32

// Access is the set of operations that a peer may do on registered memory.
type Access uint8

const (
	// RemoteRead lets the peer RDMA Read: Read chunks.
	RemoteRead Access = 1 << iota
	// RemoteWrite lets the peer RDMA Write: Write and Reply chunks.
	RemoteWrite
)

// A Region is registered memory in the words of the wire: Length octets that
// start at Offset under Handle.
type Region struct {
	Handle Handle
	Offset uint64
	Length uint32
}

// An Op is a kind of Work Request.
type Op uint8

// The kinds of Work Request.
const (
	OpSend Op = iota + 1
	OpReceive
	OpWrite
	OpRead
	OpInvalidate
)

// An AccessError ends a connection whose peer has used a valid handle in a way that it does not allow. A provider that
// does not know the handle ends the connection with another error.
type AccessError struct {
	Handle Handle
	Err    error
}

// Error returns the provider's error.
func (e *AccessError) Error() string { return e.Err.Error() }

// Unwrap returns the provider's error.
func (e *AccessError) Unwrap() error { return e.Err }

// A Completion reports the end of one Work Request.
type Completion struct {
	ID  uint64 // as posted
	Err error  // nil, or wraps ErrFlushed or the reason of the failure

	// Data holds the received octets, if they are not in the buffer that was posted: see
	// ConnOptions.InPlace. They are valid until Handler.Completed returns, and are not to be written to.
	Data  []byte
	Bytes int32 // received octets, for OpReceive
	Op    Op

	// Invalidated is the handle that the peer's Send With Invalidate invalidated, or 0
	// after a plain Send. For OpReceive.
	Invalidated Handle
	// Placed is the result of [PlacementTracker.Placed] for Invalidated, just before it was
	// invalidated. It is valid if the Conn is a PlacementTracker.
	Placed uint32
}

// Message returns the octets of a Receive that succeeded and for which buf was posted, which has at least Bytes. They are lent as long
// as Data is if they are there, and as buf is otherwise.
func (c *Completion) Message(buf []byte) []byte {
	if c.Data != nil {
		return c.Data
	}
	return buf[:c.Bytes]
}

// A Send is a message to the peer's next posted Receive.
type Send struct {
	// Parts are sent as one message, in order. The slice of slices is lent until
	// PostSend returns; the octets belong to the provider until completion.
	Parts [][]byte
	// Invalidate is a handle of the peer's to invalidate on delivery; 0 for none.
	Invalidate Handle
}

// A Write places octets in the peer's memory.
type Write struct {
	Parts [][]byte // as Send.Parts
	To    Region   // Handle and Offset; Length is ignored
}

// A Read fetches From.Length octets of the peer's memory into Into.
type Read struct {
	Into []byte // owned by the provider until completion; len(Into) >= From.Length
	From Region
}

// A Conn is one reliable connection. All methods are for its Loop only.
//
// Work Requests are named by an ID the caller chooses. Sends, Writes and Reads
// with ID 0 are silent: they complete without a Completion unless they fail.
// Sends and Writes reach the peer in posting order; a Send is delivered after
// the Writes before it.
type Conn interface {
	// PostReceive posts buf for one message; Receives are used in posting order. A
	// message longer than buf ends the connection.
	PostReceive(id uint64, buf []byte) error
	// PostSend posts a message.
	PostSend(id uint64, s Send) error
	// PostWrite posts an RDMA Write.
	PostWrite(id uint64, w Write) error
	// PostRead posts an RDMA Read.
	PostRead(id uint64, r Read) error
	// Flush starts posted work now. Without Flush posted work starts at the
	// end of the loop's pass at the latest.
	Flush()

	// Register lets the peer of this connection, and no other peer, access buf, and no
	// memory outside it, in the ways that a allows. The peer can use the handle once it has
	// received a message that was posted after Register.
	Register(buf []byte, a Access) (Region, error)
	// Invalidate invalidates h. When it reports true, no octet can be
	// read or written through h any more. When it reports false, that holds once the
	// Completion with this id arrives. Invalidating a dead handle is harmless.
	Invalidate(id uint64, h Handle) (done bool, err error)

	// Info describes the connection. It is constant after set-up.
	Info() Info
	// LastActivity is the time at which the last octets of the peer arrived.
	LastActivity() time.Time
	// Close ends the connection: posted work is flushed, then Closed(err) is
	// called. A nil err asks for an orderly close, in which posted work is completed
	// first. Completed and Closed are called after Close has returned.
	Close(err error)
}

// Info has the parameters of a connection that were agreed on at set-up.
type Info struct {
	Provider    string
	Local, Peer netip.AddrPort
	PrivateData []byte // the peer's, perhaps with zeros that its provider added; not to be changed
	IRD, ORD    int    // inbound and outbound RDMA Reads that may be outstanding
	MaxParts    int    // longest Send.Parts and Write.Parts; 0 for no limit
	MaxMessage  int    // longest Send in octets; 0 for no limit
}

// A Handler gets the events of a connection. All methods run on the Loop.
type Handler interface {
	// Setup is the first call, before any message of the peer is read. The Handler
	// posts its Receives here. An error ends the connection.
	Setup(c Conn) error
	// Completed lends cs until it returns.
	Completed(cs []Completion)
	// Closed is the last call. err is the reason for the end of the connection; nil
	// after Close(nil).
	Closed(err error)
}

// ConnOptions are the limits of one connection.
type ConnOptions struct {
	PrivateData []byte // sent to the peer; at most 248 octets
	// InvalidatingData is what Dial sends in place of PrivateData on a connection whose peer may
	// invalidate handles: see [RemoteInvalidator]. nil means PrivateData.
	InvalidatingData []byte

	Receives int // most Receives posted at once; default 256
	Sends    int // most Sends, Writes and Reads posted at once; default 1024
	Handles  int // most live handles; default 4096
	IRD      int // inbound Reads held for the peer; default 32, negative none
	ORD      int // outbound Reads wanted; default 0

	// InPlace lets the provider leave a short message where it has received it, outside of the buffer
	// that was posted, and tell so with Completion.Data. A ULP sets it that copies short messages anyway.
	InPlace bool
	// Take, unless it is nil, may be offered a message in place before the Receive for it completes. If it takes the
	// message, it reports true, and the Receive stays posted for the next message: what comes in place needs no buffer.
	// Take may post, and write to m, which it has until it returns. A call of Handler.Completed follows soon, with no
	// completions if there are none. Take gets only messages of plain Sends, and only while no completion waits.
	Take func(m []byte) bool
}

// Dialled returns o with the private data that a Dial sends. invalidates says whether the peer may
// invalidate the handles of the connection.
func (o ConnOptions) Dialled(invalidates bool) ConnOptions {
	if invalidates && o.InvalidatingData != nil {
		o.PrivateData = o.InvalidatingData
	}
	return o
}

// Bounded returns o with its defaults, and with the bounds that every provider has. mostIRD and
// mostORD are the provider's own, for the Reads.
func (o ConnOptions) Bounded(mostIRD, mostORD int) ConnOptions {
	def := func(v *int, d, most int) {
		switch {
		case *v == 0:
			*v = d
		case *v < 0:
			*v = 0
		}
		*v = min(*v, most)
	}
	def(&o.Receives, 256, 1<<20)
	def(&o.Sends, 1024, 1<<20)
	def(&o.Handles, 4096, 1<<22)
	def(&o.IRD, 32, mostIRD)
	def(&o.ORD, 0, mostORD)
	return o
}

// A Provider is an implementation of RDMA.
type Provider interface {
	// Name is the name of the provider in the configuration and in metrics.
	Name() string
	// Dial connects to addr. It blocks until h.Setup has returned on the loop, so it must
	// not be called on a loop. After an error no method of h is called.
	Dial(ctx context.Context, loop loop.Loop, addr string, o ConnOptions, h Handler) (Conn, error)
	// Listen accepts connections at addr until Close. It calls incoming, on a
	// goroutine of its own, for each connection that passed the checks of o and of the
	// provider.
	Listen(addr string, o ListenOptions, incoming func(Incoming)) (Listener, error)
}

// ListenOptions bound the resources that unknown hosts can use.
type ListenOptions struct {
	// Allow reports whether an address may connect. It is called before the peer gets
	// any answer. nil allows all.
	Allow func(netip.Addr) bool
	// Admit returns the reason to refuse a connection from an address that Allow has let in, or
	// "". It is called at the same time and does not block. nil admits all.
	Admit func(netip.Addr) (reason string, err error)

	// The limits must be set. A negative one means no limit.

	// MaxConnections bounds the connections that were passed to incoming and have not
	// ended. Those that have only begun to start up do not count.
	MaxConnections int
	// MaxStarting bounds the connections of all addresses that have not completed
	// start-up. A provider that sees connections before their request is there closes the
	// oldest silent one of the host with the most of them for a newcomer.
	MaxStarting int
	// MaxStartingPerAddr bounds the connections of one address, or IPv6 /64, that have not completed
	// start-up, in the same way.
	MaxStartingPerAddr int

	// MakeRoom is asked when MaxConnections is reached, before a connection from peer is
	// refused. If it returns true, it closes another connection, and the newcomer is let in
	// although the other may not have ended yet. nil makes no room.
	MakeRoom func(peer netip.Addr) bool
	// Sockets counts the sockets of all listeners of the process, for providers whose
	// connections are sockets. nil counts nothing.
	Sockets SocketCounter

	// Refused is called for every connection that the provider refuses. reason is one
	// of a small constant set, so that it can be a metric label; err is for the log.
	// Refused may be called on any goroutine. nil ignores.
	Refused func(peer netip.AddrPort, reason string, err error)
}

// A SocketCounter bounds how many sockets the listeners of a process have open. It is safe for
// concurrent use.
type SocketCounter interface {
	// Take counts a socket. It reports false when there are too many. A socket that replaces
	// another one, which is being closed, is always counted.
	Take(replaces bool) bool
	// Put undoes one Take that reported true.
	Put()
}

// Validate returns an error for each limit that is not set. Providers call it.
func (o *ListenOptions) Validate() error {
	var errs []error
	for _, l := range []struct {
		name string
		n    int
	}{
		{"MaxConnections", o.MaxConnections},
		{"MaxStarting", o.MaxStarting},
		{"MaxStartingPerAddr", o.MaxStartingPerAddr},
	} {
		if l.n == 0 {
			errs = append(errs, fmt.Errorf("fabric: ListenOptions.%s is 0: want a limit, or a negative number for none", l.name))
		}
	}
	return errors.Join(errs...)
}

// An Incoming is a connection that waits to be accepted. Its receiver calls either
// Accept or Reject, once, on the goroutine on which it got the Incoming.
type Incoming interface {
	// Peer is the address of the peer.
	Peer() netip.AddrPort
	// PrivateData is the peer's private data.
	PrivateData() []byte
	// Accept answers the peer and hands the connection to the loop. It blocks until
	// h.Setup has returned, like Provider.Dial.
	Accept(ctx context.Context, loop loop.Loop, o ConnOptions, h Handler) (Conn, error)
	// Reject rejects the connection. priv is private data that may tell the peer why.
	Reject(priv []byte) error
}

// A Listener is a listening endpoint.
type Listener interface {
	// Addr is the address at which it listens.
	Addr() netip.AddrPort
	// Close stops listening. Established connections stay.
	Close() error
}
