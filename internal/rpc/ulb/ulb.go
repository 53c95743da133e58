// Package ulb decides the shape of a Call on RDMA. It knows which data items of an RPC
// program may travel by direct data placement, and how long a Reply can get: RFC 8166
// Sections 3.4 to 3.5 and 6, RFC 8267.
//
// A binding analyses one program and version. A Call without a binding is carried
// whole: the generic binding reduces nothing and bounds nothing, so that the Call
// goes inline or as a Position Zero Read chunk, and its Reply comes inline or in
// a Reply chunk of the configured size. That is right for every program.
package ulb

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A Class is the effect of executing a Call twice. It decides whether the proxy may send
// the Call again.
type Class uint8

// The classes, from harmless to harmful.
const (
	ReadOnly      Class = iota // no server state changes
	Idempotent                 // the same end state; the answer may differ harmlessly
	Sequenced                  // the server's own sequence or slot table makes it exactly-once
	NonIdempotent              // state changes again, or an error is returned
)

// SessionOps is a set of operations of NFSv4.1 and later from whose Replies the proxy learns
// which sessions there are, and which connections they use: RFC 8881 Sections 18.34 to 18.37.
type SessionOps uint8

// The operations of the set.
const (
	CreateSession     SessionOps = 1 << iota // CREATE_SESSION
	BindConnToSession                        // BIND_CONN_TO_SESSION
	DestroySession                           // DESTROY_SESSION
	ExchangeID                               // EXCHANGE_ID
)

// An Analysis is the result of analysing one Call. Positions count from the
// first octet of the RPC message, its XID.
type Analysis struct {
	Known bool // the arguments were walked to their exact end
	Class Class

	// Reduce is whether direct data placement is allowed at all. It is not under
	// RPCSEC_GSS integrity or privacy, nor for an unknown flavor or program.
	Reduce bool

	// Changes is whether executing the Call may change a file: its data, its attributes, or a
	// name. It is set, too, when nobody knows that the Call changes none: for programs, procedures
	// and operations without a row in a table, and for arguments that could not be walked, unless
	// the procedure changes nothing whatever its arguments. A Call that changes only what a server
	// knows of its client, such as an OPEN for reading, has another Class than ReadOnly, and not
	// Changes.
	Changes bool

	// ArgPosition and ArgLength are the only argument worth a Read chunk: the
	// data of a WRITE, or of the longest WRITE if there are several. ArgLength is 0
	// when there is none.
	ArgPosition, ArgLength uint32

	// ResultMax is the most octets of the only result worth a Write chunk, the
	// data of a READ. It is 0 when there is none, or more than one.
	ResultMax uint32

	// MaxReply bounds the whole Reply, header included. MaxReduced bounds the Reply
	// without the item that ResultMax bounds, and equals MaxReply when there is none.
	MaxReply, MaxReduced uint32

	// Guess is whether the server may answer with more than MaxReply: nothing in the protocol
	// bounds the Reply, and the binding assumes what servers are known to return. Such a Call
	// may be sent again with a larger Reply chunk: RFC 8267 Sections 5.2 and 6.2.1.
	Guess bool

	// LayoutTypes is whether a GETATTR asks for the layout types of a file system.
	LayoutTypes bool

	// Lower tells which parts of the Call may have numbers that a [Lowerer] has to lower. It is 0 unless the
	// Call is Known and Reduce is set: other arguments and results are signed, or cannot be read.
	Lower Part

	// SessionOps tells which operations of an NFSv4 COMPOUND make, bind or end sessions. It is
	// 0 unless the COMPOUND is Known.
	SessionOps SessionOps

	// Session is the position of the session ID, 16 octets, in the SEQUENCE at the
	// start of an NFSv4 COMPOUND. It is 0 when the COMPOUND begins with another
	// operation. It is set whether or not the rest of the COMPOUND is Known.
	Session uint32

	// BackRequest is the position of the most octets of a reverse Call, which a
	// CREATE_SESSION announces. It is 0 when there is none. Without Reduce the arguments are
	// signed, and must not be changed.
	BackRequest uint32

	// Operation is the number of the Call's operation in Registry.Operations. It is set whether or
	// not the Call is Known. Of a COMPOUND it is the operation that the client wants most.
	Operation uint16
	// Operations is how many operations a COMPOUND has, as far as it could be walked; 0 for others.
	Operations uint16

	// Procedure is the name of the Call for logs and metrics, such as "READ" or
	// "COMPOUND/READ". It is "" when the procedure is unknown.
	Procedure string
}

// A Keeper is a Binding that knows procedures which change no file, whatever their arguments.
type Keeper interface {
	Keeps(procedure uint32) bool
}

// A Fixer is a Binding that knows procedures whose Analysis follows from their number, if the arguments have a certain
// layout and are plain XDR. The Registry asks once for each procedure.
type Fixer interface {
	// Fixed fills a as Analyse does. ok is false if the Analysis of the procedure depends on the arguments.
	Fixed(procedure uint32, a *Analysis) (args Layout, ok bool)
}

// An Operation is what the Calls of a program can be for.
type Operation struct {
	Program, Version uint32
	Name             string // such as READ; "other" for procedures that the binding does not know
	Status           StatusKind
}

// A StatusKind says where the results of a successful RPC Reply have a status of their own.
type StatusKind uint8

// The kinds of status.
const (
	NoStatus    StatusKind = iota // nowhere
	FirstStatus                   // nfsstat or the like, in their first word
	LockStatus                    // nlm_stats, behind a cookie of variable length
)

// An Operator is a Binding that names its operations. Operation 0 is NULL, and one without a name does not
// exist. The first of them, as many as procedures says, are those of the procedures of these numbers. The
// others are for Analyse to set.
type Operator interface {
	Operations() (all []Operation, procedures int)
}

// The operations of a program beside those that its binding names.
const (
	operationGSS   = "GSS"   // makes or ends a context of RPCSEC_GSS
	operationOther = "other" // is not known
)

// A CallShape is the way in which a Call travels.
type CallShape uint8

// The shapes of a Call.
const (
	CallInline    CallShape = iota // RDMA_MSG, no Read list
	CallReadChunk                  // RDMA_MSG, one Read chunk at Analysis.ArgPosition
	CallLong                       // RDMA_NOMSG, the whole Call as Position Zero Read chunk
)

// A ReplyShape is the chunk that a Call offers for its Reply.
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

// A Binding knows one RPC program and version. It is safe for concurrent use, keeps no
// reference to its arguments, and does not allocate.
type Binding interface {
	// Analyse walks the arguments of c and fills a, which is zero but for Reduce. The
	// caller has checked that c.Arguments can be read. Here MaxReply and MaxReduced
	// bound the results alone, or are [Unbounded]; the Registry adds the header and
	// the octets that the security flavor wraps around results. Analyse never fails:
	// when it cannot walk the arguments, Known stays false.
	Analyse(c *oncrpc.Call, l *Limits, a *Analysis)

	// ResultItem finds the DDP-eligible result in the successful Reply m, whose
	// results begin at results, to a Call of procedure proc: the position of its
	// first data octet and its length. When reduced is true the item's octets
	// and roundup are absent from m; ResultItem skips roundup that a peer left there.
	// ok is false when the Reply holds no such item. It returns an error when it could
	// not walk the results to the end of m.
	ResultItem(proc uint32, m []byte, results int, reduced bool) (pos, length uint32, ok bool, err error)

	// ResultItems fills items with the DDP-eligible results in the plain, successful
	// Reply m, in the order of the Write chunks that they go to, and returns how many
	// it filled. m has all items with their roundup. It returns an error when it could
	// not walk the results to the end of m.
	ResultItems(proc uint32, m []byte, results int, items []Splice) (n int, err error)

	// ArgItem finds the DDP-eligible argument whose data belong at position pos
	// of a Call from which they and their roundup are absent, and returns its length.
	// ok is false when no eligible item starts there.
	ArgItem(c *oncrpc.Call, pos uint32) (length uint32, ok bool)

	// ArgItems reports whether the data of a DDP-eligible argument begin at each of
	// the positions in the plain Call c. The positions are in ascending order.
	ArgItems(c *oncrpc.Call, positions []uint32) bool
}
