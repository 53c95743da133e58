// Package fabric is what RPC-over-RDMA needs from RDMA: connections with
// private data, Send and Receive, RDMA Read and Write, registered memory that
// a peer can be given and that can be taken back, and completions.
//
// # Ownership
//
// A connection belongs to one [loop.Loop]: every method of [Conn] is called on that
// loop's goroutine, and every method of its [Handler] runs there. Nothing here
// blocks. A provider whose work finishes elsewhere (a completion queue with a
// goroutine of its own) posts its completions to the loop in batches.
//
// Memory given to a Conn comes from an arena of package regmem, so that a
// provider that must pin memory can do so once per arena. From post to
// completion the provider owns the bytes; nobody else writes to them, and
// nobody reads those that the peer may be writing.
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
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

var (
	// ErrFlushed is wrapped by completions of Work Requests that the end of
	// their connection cut short.
	ErrFlushed = errors.New("fabric: flushed")
	// ErrClosed is returned by posting to a connection that has ended.
	ErrClosed = errors.New("fabric: connection closed")
	// ErrRejected is wrapped by Dial's error when the peer answered and said no.
	ErrRejected = errors.New("fabric: connection rejected by peer")
	// ErrQueueFull is returned by posting beyond the depth asked for at
	// connection set-up.
	ErrQueueFull = errors.New("fabric: work queue full")
	// ErrLimit is wrapped when a provider-wide limit (connections, handles,
	// registered bytes) refuses an operation.
	ErrLimit = errors.New("fabric: limit reached")
	// ErrSilent ends a connection whose peer's host does not answer any more. What
	// the peer's processes do has nothing to do with it.
	ErrSilent = errors.New("fabric: peer's host is silent")
)

// A Handle is what a peer quotes to reach registered memory: the STag of
// iWARP, the R_key of InfiniBand. 0 is never handed out.
type Handle uint32

// Access is what a peer may do with registered memory.
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

// An Op says which kind of Work Request a Completion ends.
type Op uint8

// The kinds of Work Request.
const (
	OpSend Op = iota + 1
	OpReceive
	OpWrite
	OpRead
	OpInvalidate
)

// A Completion ends one Work Request.
type Completion struct {
	ID  uint64 // as posted
	Op  Op
	Err error // nil, or wraps ErrFlushed or the reason

	Bytes int // received octets, for OpReceive

	// Invalidated is the handle that the peer's Send With Invalidate killed;
	// 0 when it was a plain Send. For OpReceive.
	Invalidated Handle
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
	To    Region   // Handle and Offset; Length is not looked at
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
	// PostReceive gives buf to the next message. A message longer than buf ends
	// the connection.
	PostReceive(id uint64, buf []byte) error
	PostSend(id uint64, s Send) error
	PostWrite(id uint64, w Write) error
	PostRead(id uint64, r Read) error
	// Flush starts what has been posted. Without it posted work starts at the
	// end of the loop's pass at the latest.
	Flush()

	// Register makes all of buf reachable for the peer of this connection,
	// and only for it, with the access given, and nothing beside it.
	Register(buf []byte, a Access) (Region, error)
	// Invalidate takes the handle back. When it reports true, no octet can be
	// read or written through h any more. When false, that holds once the
	// Completion with this id arrives. Invalidating a dead handle is harmless.
	Invalidate(id uint64, h Handle) (done bool, err error)

	// Info describes the connection; constant after set-up.
	Info() Info
	// LastActivity is when the peer was last heard.
	LastActivity() time.Time
	// Close ends the connection: posted work is flushed, then Closed(err) is
	// called. A nil err asks for an orderly end: what was posted is written first.
	// Completions and Closed come after Close has returned.
	Close(err error)
}

// Info is what was agreed when the connection was set up.
type Info struct {
	Provider    string
	Local, Peer netip.AddrPort
	PrivateData []byte // the peer's, without what the provider added; not to be changed
	IRD, ORD    int    // inbound and outbound RDMA Reads that may be outstanding
	MaxParts    int    // longest Send.Parts and Write.Parts; 0 for no limit
	MaxMessage  int    // longest Send in octets; 0 for no limit
}

// A Handler is told what happens on a connection. All methods run on the Loop.
type Handler interface {
	// Setup is the first call, before the peer can be heard: post Receives here.
	// An error ends the connection.
	Setup(c Conn) error
	// Completed lends cs until it returns.
	Completed(cs []Completion)
	// Closed is the last call. err says why the connection ended; nil when this
	// side asked for it.
	Closed(err error)
}

// ConnOptions are limits and promises of one connection.
type ConnOptions struct {
	PrivateData []byte // sent to the peer; at most 248 octets

	Receives int // most Receives posted at once; default 256
	Sends    int // most Sends, Writes and Reads posted at once; default 1024
	Handles  int // most live handles; default 4096
	IRD      int // inbound Reads held for the peer; default 32, negative none
	ORD      int // outbound Reads wanted; default 0
}

// A Provider is one way of doing RDMA.
type Provider interface {
	Name() string
	// Dial connects. It blocks until h.Setup has returned on the loop, and is
	// called on a goroutine of its own. After an error no method of h is called.
	Dial(ctx context.Context, loop loop.Loop, addr string, o ConnOptions, h Handler) (Conn, error)
	// Listen accepts connections at addr until Close. incoming is called on a
	// goroutine of its own for each connection that passed the provider's checks.
	Listen(addr string, o ListenOptions, incoming func(Incoming)) (Listener, error)
}

// ListenOptions bound what strangers can take.
type ListenOptions struct {
	// Allow decides by address, before the peer gets any answer. nil allows all.
	Allow func(netip.Addr) bool
	// MaxConnections bounds established and starting connections; default 1024.
	MaxConnections int
	// MaxStarting bounds connections that have not finished start-up, over all
	// addresses; default 128. MaxStartingPerAddr bounds them for one; default 16.
	MaxStarting, MaxStartingPerAddr int
	// Refused is told of every connection turned away, with a reason that is one
	// of a small constant set and suits a metric label, and of err for the log.
	// It may be called on any goroutine. nil ignores.
	Refused func(peer netip.AddrPort, reason string, err error)
}

// An Incoming is a connection that waits to be accepted. Exactly one of its
// methods Accept and Reject is called, once, on the goroutine it was given to.
type Incoming interface {
	Peer() netip.AddrPort
	PrivateData() []byte
	// Accept answers and hands the connection to the loop; as Provider.Dial.
	Accept(ctx context.Context, loop loop.Loop, o ConnOptions, h Handler) (Conn, error)
	// Reject refuses, with private data that may explain.
	Reject(priv []byte) error
}

// A Listener is a listening endpoint.
type Listener interface {
	Addr() netip.AddrPort
	// Close stops listening. Established connections stay.
	Close() error
}
