// Package ulb knows which data items of an RPC program may travel by direct
// data placement, how large a Reply can get, and from both decides the shape of
// a Call on RDMA: RFC 8166 Sections 3.4 to 3.5 and 6, RFC 8267.
//
// A binding analyses one program and version. What no binding knows is carried
// whole: the generic binding reduces nothing and bounds nothing, so that a Call
// goes inline or as a Position Zero Read chunk, and its Reply comes inline or in
// a Reply chunk of the configured size. That is right for every program.
package ulb

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A Class says what a second execution of a Call does. It decides replay.
type Class uint8

// The classes, from harmless to harmful.
const (
	ReadOnly      Class = iota // no server state changes
	Idempotent                 // the same end state; the answer may differ harmlessly
	Sequenced                  // the server's own sequence or slot table makes it exactly-once
	NonIdempotent              // state changes again, or an error is returned
)

// An Analysis is what a binding found in one Call. Positions count from the
// first octet of the RPC message, its XID.
type Analysis struct {
	Known bool // the arguments were walked to their exact end
	Class Class

	// Reduce is whether direct data placement is allowed at all: not under
	// RPCSEC_GSS integrity or privacy, nor for an unknown flavor or program.
	Reduce bool

	// ArgPosition and ArgLength are the one argument worth a Read chunk: the
	// data of a WRITE, of the longest if there are several. ArgLength 0: none.
	ArgPosition, ArgLength uint32

	// ResultMax is the most octets of the one result worth a Write chunk, the
	// data of a READ; 0: none, or more than one.
	ResultMax uint32

	// MaxReply bounds the whole Reply, header included; MaxReduced the Reply
	// without the item that ResultMax bounds, equal when there is none.
	MaxReply, MaxReduced uint32

	// Session is the position of the 16 octets of the session ID in the SEQUENCE
	// that an NFSv4 COMPOUND begins with; 0: none. It is set whether or not the
	// rest of the COMPOUND is Known.
	Session uint32

	// CreatesSession is whether the Reply, if it succeeds, tells the limits of a
	// new session.
	CreatesSession bool

	// Procedure names the Call for logs and metrics: "READ", "COMPOUND/READ"; ""
	// when unknown.
	Procedure string
}

// A CallShape is how a Call travels.
type CallShape uint8

// The shapes of a Call.
const (
	CallInline    CallShape = iota // RDMA_MSG, no Read list
	CallReadChunk                  // RDMA_MSG, one Read chunk at Analysis.ArgPosition
	CallLong                       // RDMA_NOMSG, the whole Call as Position Zero Read chunk
)

// A ReplyShape is what is offered for a Reply.
type ReplyShape uint8

// The shapes of a Reply.
const (
	ReplyInline     ReplyShape = iota // nothing offered
	ReplyWriteChunk                   // one Write chunk of Shape.Capacity octets
	ReplyChunk                        // a Reply chunk of Shape.Capacity octets
)

// A Shape is the plan for one Call and its Reply.
type Shape struct {
	Call     CallShape
	Reply    ReplyShape
	Capacity uint32 // octets to offer for the Reply
}

// ErrTooLong reports a Call that no shape can carry.
var ErrTooLong = errors.New("ulb: call too long for any shape")

// A Binding knows one RPC program and version. It is used by many goroutines at
// once, keeps nothing of what it is given, and does not allocate.
type Binding interface {
	// Analyse walks the arguments of c, which c.Arguments says can be read, and
	// fills a, which is zero but for Reduce. Here MaxReply and MaxReduced bound
	// the results alone, [Unbounded] when nothing does; the Registry adds the
	// header and what the security flavor wraps around results. It never fails:
	// what cannot be walked is left not Known.
	Analyse(c *oncrpc.Call, l *Limits, a *Analysis)

	// ResultItem finds the DDP-eligible result in the successful Reply m, whose
	// results begin at results, to a Call of procedure proc: the position of its
	// first data octet and its length. When reduced is true the item's octets
	// and roundup are absent from m; roundup that a peer left there all the same
	// is passed over. ok is false when the Reply holds no such item. An error
	// says that the results could not be walked to the end of m.
	ResultItem(proc uint32, m []byte, results int, reduced bool) (pos, length uint32, ok bool, err error)

	// ResultItems finds the DDP-eligible results in the plain, successful Reply m,
	// as many as items is long, in the order in which Write chunks are theirs, and
	// returns how many there are. Each is in m with its roundup. An error says
	// that the results could not be walked to the end of m.
	ResultItems(proc uint32, m []byte, results int, items []Splice) (n int, err error)

	// ArgItem finds the DDP-eligible argument whose data belong at position pos
	// of a Call that lacks them and their roundup, and returns its length. ok is
	// false when no eligible item starts there.
	ArgItem(c *oncrpc.Call, pos uint32) (length uint32, ok bool)

	// ArgItems reports whether the data of a DDP-eligible argument begin at each of
	// the positions, ascending, of the plain Call c.
	ArgItems(c *oncrpc.Call, positions []uint32) bool
}
