package proxy

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A call is one RPC Call, from the moment a client's message is read until its Reply has
// been sent or its client's connection has been closed. The file call_state.go draws its
// states.
//
// One goroutine owns a call at a time, and its state says which. Other goroutines may do one
// thing with it: to see whether another Call repeats it, they read its header and its message
// behind the XID, under a lock of the Calls in flight (identity.Flights).
//
// These callbacks move a call on. The pool calls Dispatch of an [upstreamConn] when a credit
// is free, and [unsentCalls.Expired] when the call leaves the queue without one. A loop calls Run
// after the call was posted to it. The connection to the upstream calls CallDone or
// written.Release, and the client's connection calls Release.
type call struct {
	// With 4,096 calls under way, each cache line costs a miss. So the octets of a call are in the order in which a
	// Call needs them, and most Calls touch ten lines: TestCallLines. A call and the 8 octets that Go's heap has in
	// front of it fill a size class, 1,024 octets. So its lines begin at 56, 120, 184, and so on, and what is needed
	// when a Call is read, when it is sent, and when its Reply comes is in lines of its own: TestWarmLines.
	perCall
	h     oncrpc.Call // the Call's header; half of it is needed only while the Call is read
	reply reply
	// The message, which is in memory of the arena, and its XID and analysis, as the upstream gets them; and the Reply
	// of an RDMA upstream. The proxy changes the message in place: rule 1 of ARCHITECTURE.md says where.
	rdma rdmaside.Call
	seldom
	flight identity.Flight // of Calls that do harm when repeated
	scratch
}

// perCall is what nearly every Call needs. The pool and the connection touch the entry, conn, the flags and the times
// together when they dispatch the call.
type perCall struct {
	entry      pool.Entry   // the call as the pool sees it, with the seat whose credit it has
	conn       upstreamConn // the connection that carries the call, or carried it last
	state      callState
	signed     bool // RPCSEC_GSS: XID and message must not change, and the call is never replayed; set by front.begin
	flying     bool // it is among the flights; changed only by the goroutine that owns the call
	session    session.Call
	shares     bool      // the message is in a block of its own, in which a Reply may follow
	usesSeldom bool      // there may be something in seldom; set before something is
	stump      nfs.Stump // of a COMPOUND that was cut
	_          [8]byte   // puts what follows in the lines where it is needed
	progress   observe.Progress

	up     *upstream.Upstream // set by front.begin, and constant afterwards
	buf    *regmem.Lease      // holds the message, the record of a TCP client; nil if owner.exchange holds it
	owner  owner
	charge admit.Charge
	queue  *clientQueue // where the call waits, or waited last
	_      [8]byte      // as above
}

// seldom is what few Calls need. It is empty unless usesSeldom is set, so that a Call that needs none of it does
// not touch its memory.
type seldom struct {
	gss        identity.GSSCall
	retry      retry
	tap        observe.TapMark
	rule       *rules.Rule       // that denies the call, or sends it to an upstream; set for an Observer only
	limit      *gates.SharedRate // of a rule that limits the call; nil for none
	next, prev *call             // in rdmaClient.waiting, and in front.held
}

// scratch holds octets and slices that other fields point to. What it held for an earlier Call is never read.
type scratch struct {
	one   [1][]byte // backs reply.parts, and the message on its way to a TCP upstream
	local [32]byte  // holds a Reply that the bridge makes itself
	sent  sentTCP
	slot  int32 // index in eventLoop.all; constant while the call is there
}

// An owner is the client connection that a call came on and is answered on.
type owner struct {
	front *front // constant
	// The Exchange holds the message of an RDMA client and answers it. It is constant until takeExchange.
	exchange *rdmaside.Exchange
}

// A sentTCP is what a connection to a TCP upstream keeps in each of its calls, from tcpConn.link to unlink. It belongs
// to that connection's loop.
type sentTCP struct {
	writing bool       // the kernel may not have the whole message yet
	kept    bool       // counted in tcpConn.kept
	copied  bool       // the connection has made a copy of the message, and number counts it
	number  uint32     // in tcpConn.copies
	at      int64      // when the message was handed to the connection, on the loop's clock
	older   *call      // the Call that was sent before this one and is outstanding
	newer   *call      // the Call that was sent after this one and is outstanding
	early   *tcpAnswer // came while writing was set; nil for none
}

// A retry is what a call remembers of the earlier attempts to have it answered.
type retry struct {
	unsent   error  // why the connection did not send it; from unsent to resubmit
	pause    uint32 // nanoseconds of the last wait before it was queued again
	cut      uint8  // times its connection was lost before all of it was sent
	bigReply bool   // it was queued again with the largest Reply chunk, after an RDMA_ERROR
}

// A reply is what a call's client gets.
type reply struct {
	parts  [][]byte // the first begins with the XID and may be written to; nil: there is no Reply
	lease  releaser // owns parts; nil when they are in local
	memory int      // octets of memory that parts take
	err    error    // why there is no Reply, and the client's connection is closed
}

// An upstreamConn is one connection to an upstream, as Calls see it. Its own methods run on its loop.
type upstreamConn interface {
	upstream.Conn
	observe.Tapped
	// send sends c, which holds a credit, or calls c.unsent.
	send(c *call)
	// Credits is how many Calls may be outstanding now.
	Credits() int
	// outstanding is how many Calls are outstanding now.
	outstanding() int
}

// A releaser gives memory back.
type releaser interface{ Release() }

// warm reads an octet of each cache line that sending the Call of e reads: of the call, and of the first
// octets of the message. pool.NewBatch says why.
func warm(e *pool.Entry) (sum uint8) {
	c := e.Owner.(*call)
	sum = uint8(c.state) + uint8(c.rdma.XID) + uint8(c.rdma.Analysis.Class)
	if c.conn != nil && c.rdma.Binding != nil {
		sum++
	}
	m := c.rdma.Message
	m = m[:min(len(m), warmOctets)]
	for i := 0; i < len(m); i += cacheLine {
		sum += m[i]
	}
	return sum
}

const (
	cacheLine  = 64
	warmOctets = 4 * cacheLine // of a Call's message
	warmReply  = 3 * cacheLine // of a Reply behind it
	warmCalls  = 1024          // so many calls that are in use, a MiB, stay in a cache
)

// warmAnswered reads an octet of each cache line that the Reply to rc needs: of the call, and of what is behind the
// message, where a short Reply goes. rdmaside.RequesterOptions says why.
func warmAnswered(rc *rdmaside.Call) (sum uint8) {
	c, ok := rc.Owner.(*call)
	if !ok {
		return 0 // a probe's
	}
	sum = uint8(c.state) + uint8(c.progress.Status) + uint8(c.charge.Expected) + uint8(c.reply.memory) +
		uint8(c.rdma.Analysis.Class)
	if c.entry.Owner != nil && c.conn != nil && c.rdma.Binding != nil {
		sum++
	}
	m := c.rdma.Message
	m = m[len(m):cap(m)]
	m = m[:min(int(c.rdma.Spare), len(m), warmReply)]
	for i := 0; i < len(m); i += cacheLine {
		sum += m[i]
	}
	return sum
}

// replayable reports whether the Call may be sent again although the server may have
// executed it: package ulb has the classes. For a Call that must not be repeated, or that only
// the client can encode again, the bridge closes the client's connection. The client
// retransmits the Call, which gets the same XID. A COMPOUND that begins with
// SEQUENCE is replayable whatever the rest of it is, because the server executes it once.
func (c *call) replayable() bool {
	return !c.signed && (c.rdma.Analysis.Class < ulb.NonIdempotent || c.rdma.Analysis.Session != 0)
}

// parsed reports whether the header of the Call was parsed to its end.
func (c *call) parsed() bool { return c.h.Args != 0 }

// setXID writes the XID that the upstream sees into the message.
func (c *call) setXID(xid uint32) {
	c.rdma.XID = xid
	binary.BigEndian.PutUint32(c.rdma.Message, xid)
}

// changeXID gives c another XID, which follows from the present one and has nothing to do with it.
func (c *call) changeXID() { c.setXID(c.up.XIDs.Another(c.rdma.XID)) }

// answer makes b, an RPC Reply in c.local, the Reply.
func (c *call) answer(b []byte) {
	c.one[0] = b
	c.reply.parts, c.reply.lease = c.one[:], nil
	c.progress.Result = observe.ResultLocal
}

// setReply makes a copy of parts, with so many zeros behind it, the Reply to c. It does not release the Reply
// before. l is the calling loop; nil for none.
func (c *call) setReply(l *eventLoop, parts [][]byte, more int) error {
	account := c.up.Replies
	if l != nil {
		account = l.replies
	}
	b, err := account.Lease(octets(parts) + more)
	if err != nil {
		return err
	}
	n := 0
	for _, p := range parts {
		n += copy(b.Bytes()[n:], p)
	}
	clear(b.Bytes()[n:])
	c.one[0] = b.Bytes()
	c.reply.parts, c.reply.lease, c.reply.memory = c.one[:], b, b.Size()
	return nil
}

// systemError makes the Reply one of SYSTEM_ERR.
func (c *call) systemError() {
	c.answer(oncrpc.AppendAccepted(c.local[:0], c.progress.ClientXID, oncrpc.SystemError))
	c.rdma.XID = c.progress.ClientXID
}

// restoreXID puts the client's XID into the Reply.
func (c *call) restoreXID() {
	if c.rdma.XID != c.progress.ClientXID {
		binary.BigEndian.PutUint32(c.reply.parts[0], c.progress.ClientXID)
	}
}

// client is the connection that c came on and is answered on.
func (c *call) client() *front { return c.owner.front }

// exchange is what c is answered on; nil for a TCP client.
func (c *call) exchange() *rdmaside.Exchange { return c.owner.exchange }

// keepsOrder reports whether c keeps its order among the Calls of its GSS context.
func (c *call) keepsOrder() bool { return c.signed && identity.KeepsOrder(&c.h) }

// creditDone gives the credit of c to the next Call. here is the number of the calling loop.
func (c *call) creditDone(here int) { c.entry.Seat().Done(&c.entry, here) }

// isUnderWay reports whether c has been read and not been settled. progress says how far it has got.
func (c *call) isUnderWay() (progress *observe.Progress, ok bool) {
	return &c.progress, c.progress.Began != 0
}

// withdraw ends the wait of c, which is held because it repeats another Call. It reports whether c was held.
func (c *call) withdraw() bool { return c.up.Flights.Withdraw(&c.flight) }

// takeExchange returns the Exchange to answer on, or nil for a TCP client, and forgets it.
func (c *call) takeExchange() *rdmaside.Exchange {
	x := c.owner.exchange
	c.owner.exchange = nil
	return x
}

// releaseMessage gives the message's memory back, unless an Exchange holds it. The Call will
// not be sent again.
// l is the calling loop; nil for none.
func (c *call) releaseMessage(l *eventLoop) {
	if c.buf != nil {
		l.releaseMessage(c.buf)
		c.owner.front.givesBack(&c.charge)
	}
	c.buf, c.rdma.Message = nil, nil
	if raceEnabled { // whoever reads it now panics; without the detector, to write it costs a cache line
		c.h.Message = nil
	}
}

// spare returns how many octets behind the message, in its block, a Reply may take, which then waits there until
// the client has read it. The block is short, so that it is no longer than one that the Reply would get. l is the
// calling loop.
func (c *call) spare(l *eventLoop) uint32 {
	if !c.shares || !l.ample || cap(c.rdma.Message) > longestShared {
		return 0
	}
	return uint32(cap(c.rdma.Message) - len(c.rdma.Message))
}

// ample reports whether so much of the memory for Calls is free that Replies may use some of it. Clients that do not
// read their Replies keep no more than a quarter of it from others.
func ample(calls *regmem.Account) bool { return calls.Taken() <= calls.Limit()/4 }

// longestShared is the length of the longest block that a message shares with its Reply.
const longestShared = 1 << 10

// releaseMemory gives the message's and the Reply's memory back, as releaseMessage does.
func (c *call) releaseMemory(l *eventLoop) {
	c.releaseMessage(l)
	if c.reply.lease != nil {
		l.releaseReply(c.reply.lease)
	}
	c.reply.lease, c.reply.parts = nil, nil
}

// reset empties c, for the next Call. The header stays what it was until then (account.read): to empty it here would
// cost another cache line.
func (c *call) reset() {
	switch {
	case c.usesSeldom:
		c.seldom = seldom{}
	case raceEnabled && c.seldom != seldom{}:
		panic("BUG: proxy: a call has something in seldom and does not say so")
	}
	c.perCall = perCall{} // in place; a literal with the owner would be made elsewhere and copied
	c.reply = reply{}
	c.rdma.Reset()
	c.entry.Owner, c.rdma.Owner = c, c
}

// A flag is a bool that one goroutine sets and others read.
type flag struct{ v atomic.Bool }

func (f *flag) set()      { f.v.Store(true) }
func (f *flag) get() bool { return f.v.Load() }

// setState moves c to another state. Only call.reset changes the state otherwise.
func (c *call) setState(to callState) {
	if callMoves[c.state&7]>>to&1 == 0 {
		c.cannotBe(to)
	}
	c.state = to
}

// cannotBe is a call, so that setState is none.
//
//go:noinline
func (c *call) cannotBe(to callState) {
	panic(fmt.Sprintf("BUG: proxy: a call that is %v becomes %v", c.state, to))
}

// A tcpAnswer is what a server has answered a Call with: a Reply, or a message that is refused.
type tcpAnswer struct {
	reply  tcpframe.Buffer
	reason string // why the message is refused
	err    error  // nil for a Reply
}
