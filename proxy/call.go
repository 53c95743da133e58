package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// A call is one RPC Call, from the moment a client's message is read until its Reply has
// been sent or its client's connection has been closed. The file call_state.go draws its
// states.
//
// One goroutine owns a call at a time, and its state says which. Other goroutines may do one
// thing with it: to see whether another Call repeats it, they read its header and its message
// behind the XID, under a lock of the Calls in flight (flights.enter).
//
// These callbacks move a call on. The pool calls Dispatch of an [upstreamConn] when a credit
// is free, and [upstream.Expired] when the call leaves the queue without one. A loop calls Run
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
	scratch
}

// perCall is what nearly every Call needs. The pool and the connection touch the entry, the flags, times and conn
// together when they dispatch the call.
type perCall struct {
	entry      pool.Entry // the call as the pool sees it, with the seat whose credit it has
	state      callState
	signed     bool         // RPCSEC_GSS: XID and message must not change, and the call is never replayed
	flying     bool         // it is among the flights; changed only by the goroutine that owns the call
	absorbed   bool         // it has been counted as absorbed; the client's loop's
	copied     bool         // the connection has a copy of the Reply, and says what becomes of it: tcpClient.Copied
	learns     bool         // the session table learns from the Reply to its SEQUENCE
	foreAlone  bool         // nfs.BindForeOrBoth has changed it
	shares     bool         // the message is in a block of its own, in which a Reply may follow
	usesSeldom bool         // there may be something in seldom; set before something is
	class      class        // of the Reply, set by front.deliver as the next two
	hasStatus  bool         // status is set
	stump      nfs.Stump    // of a COMPOUND that a rule has cut
	result     result       // what became of the Call
	replays    uint8        // times it was sent again after a connection was lost
	operations uint16       // of a COMPOUND; set by front.begin as signed is, and constant afterwards
	times      callTimes    // each is set where the call is in a cache: sent with conn, and replied with the Reply
	conn       upstreamConn // the connection that carries the call, or carried it last

	// Set by front.begin, and constant afterwards.
	up        *upstream
	op        *operation // the client's loop's; nil for a message that is no Call of RPC version 2
	clientXID uint32
	size      int32 // octets of the Call

	status uint32 // the status of NFS or the like in the Reply; set by front.deliver
	octets int32  // of the Reply; set by front.deliver

	buf    releaser // holds the message, the record of a TCP client; nil if owner.exchange holds it
	held   heldMemory
	owner  owner
	charge charge
	queue  *clientQueue // where the call waits, or waited last
}

// seldom is what few Calls need. It is empty unless usesSeldom is set, so that a Call that needs none of it does
// not touch its memory.
type seldom struct {
	flight     flight
	sent       sentTCP
	gss        gssCall
	retry      retry
	tap        callTap
	rule       *rules.Rule // that denies the call, or sends it to an upstream; set for an Observer only
	next, prev *call       // in rdmaClient.waiting, and in ledger.repeats
}

// scratch holds octets and slices that other fields point to. What it held for an earlier Call is never read.
type scratch struct {
	one   [1][]byte // backs reply.parts, and the message on its way to a TCP upstream
	local [32]byte  // holds a Reply that the bridge makes itself
	slot  int32     // index in eventLoop.all; constant while the call is there
}

// A heldMemory is what callMemory counts for the message of a call.
type heldMemory struct {
	host   *host
	octets int64 // 0 for none
}

// An owner is the client connection that a call came on and is answered on.
type owner struct {
	front    *front             // constant
	exchange *rdmaside.Exchange // holds the message of an RDMA client and answers it; constant until takeExchange; nil for a TCP client
}

// A charge is what a client's ledger and the upstream's slow start count for a call.
type charge struct {
	expected  int    // octets that the Reply is expected to have; when lent is set, the memory it takes
	host      *host  // for which the admission counts the call, if slowStart is not 0
	slowStart uint32 // the age in which the upstream's slow start counted the call; 0 if it does not
	counted   bool   // the client's ledger counts the call
	lent      bool   // the client's ledger counts the memory of the Reply
	shared    bool   // the quotas of the client's tenant count the call
}

// A sentTCP is what a connection to a TCP upstream keeps in each of its calls. It belongs to
// that connection's loop.
type sentTCP struct {
	writing bool       // the kernel may not have the whole message yet
	kept    bool       // counted in tcpConn.kept
	at      int64      // when the message was handed to the connection, on the loop's clock
	older   *call      // the Call that was sent before this one and is outstanding
	newer   *call      // the Call that was sent after this one and is outstanding
	early   *tcpAnswer // came while writing was set; nil for none
}

// A retry is what a call remembers of the earlier attempts to have it answered.
type retry struct {
	pause    time.Duration // the last wait before it was queued again
	unsent   error         // why the connection did not send it; from unsent to resubmit
	cut      uint8         // times its connection was lost before all of it was sent
	bigReply bool          // it was queued again with the largest Reply chunk, after an RDMA_ERROR
}

// A reply is what a call's client gets.
type reply struct {
	parts  [][]byte // the first begins with the XID and may be written to; nil: there is no Reply
	lease  releaser // owns parts; nil when they are in local
	memory int      // octets of memory that parts take
	err    error    // why there is no Reply, and the client's connection is closed
}

// mostWhole is the most octets of several parts that whole puts together.
const mostWhole = 64 << 10

// whole returns the Reply in one piece, or nil if it is longer than mostWhole and would have to be
// copied. It is for Replies that say something about sessions, which are short: a client that has a READ
// in such a COMPOUND is not to cause a copy of the data.
func (r *reply) whole() []byte {
	switch {
	case len(r.parts) == 1:
		return r.parts[0]
	case octets(r.parts) > mostWhole:
		return nil
	}
	return bytes.Join(r.parts, nil)
}

// A releaser gives memory back.
type releaser interface{ Release() }

// Run continues the call on the loop it was posted to. loop.Task.
func (c *call) Run() {
	switch c.state {
	case callDispatched:
		c.conn.send(c)
	case callWaiting:
		c.resubmit()
	case callHeld:
		c.owner.front.proceed(c)
	case callReplying:
		c.owner.front.deliver(c)
	default:
		panic(fmt.Sprintf("BUG: proxy: a call that is %v was posted", c.state))
	}
}

// warm reads an octet of each cache line that sending the Call of e reads: of the call, and of the first
// octets of the message. pool.NewBatch says why.
func warm(e *pool.Entry) (sum uint8) {
	c := e.Owner.(*call)
	sum = uint8(c.state) + uint8(c.times.sent) + uint8(c.rdma.XID) + uint8(c.rdma.Analysis.Class)
	if c.rdma.Binding != nil {
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
)

// warmAnswered reads an octet of each cache line that the Reply to rc needs: of the call, and of what is behind the message,
// where a short Reply goes. rdmaside.RequesterOptions says why.
func warmAnswered(rc *rdmaside.Call) (sum uint8) {
	c, ok := rc.Owner.(*call)
	if !ok {
		return 0 // a probe's
	}
	sum = uint8(c.state) + uint8(c.times.sent) + uint8(c.status) + uint8(c.charge.expected) + uint8(c.reply.memory) + uint8(c.rdma.Analysis.Class)
	if c.entry.Owner != nil && c.rdma.Binding != nil {
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

// CallDone is called when an RDMA upstream has answered, or when its connection knows that it
// will not. rdmaside.CallOwner.
func (c *call) CallDone(_ *rdmaside.Call, err *rdmaside.CallError) {
	c.conn.(*rdmaConn).done(c, err)
}

// Release is called when the client's connection needs the Reply no longer: the Reply is
// written, or the connection has ended.
// tcpframe.Releaser and rdmaside.Releaser.
func (c *call) Release() { c.owner.front.settle(c) }

// A written is a call as the owner of its message while a TCP upstream's connection has it.
type written call

// Release is called when the connection needs the message no longer. When the connection
// has ended before the kernel took the whole message, the server cannot have executed the
// Call: it stays marked as being written. tcpframe.Releaser.
func (w *written) Release() {
	c := (*call)(w)
	if m := c.conn.(*tcpConn); !m.conn.Ended() {
		m.written(c)
	}
}

// replayable reports whether the Call may be sent again although the server may have
// executed it: package ulb has the classes. For a Call that must not be repeated, or that only
// the client can encode again, the bridge closes the client's connection. The client
// retransmits the Call, which gets the same XID. A COMPOUND that begins with
// SEQUENCE is replayable whatever the rest of it is, because the server executes it once.
func (c *call) replayable() bool {
	return !c.signed && (c.rdma.Analysis.Class < ulb.NonIdempotent || c.rdma.Analysis.Session != 0)
}

// setXID writes the XID that the upstream sees into the message.
func (c *call) setXID(xid uint32) {
	c.rdma.XID = xid
	binary.BigEndian.PutUint32(c.rdma.Message, xid)
}

// changeXID gives c another XID, which follows from the present one and has nothing to do with it.
func (c *call) changeXID() { c.setXID(c.up.p.xids.own.of(c.rdma.XID)) }

// wasSent notes that a connection on l has sent c. Of a Call that is sent several times the first counts.
func (c *call) wasSent(l *eventLoop) {
	c.entry.Sent()
	if c.times.sent == 0 {
		c.times.sent = l.Now()
	}
}

// answer makes b, an RPC Reply in c.local, the Reply.
func (c *call) answer(b []byte) {
	c.one[0] = b
	c.reply.parts, c.reply.lease = c.one[:], nil
	c.result = resultLocal
}

// systemError makes the Reply one of SYSTEM_ERR.
func (c *call) systemError() {
	c.answer(oncrpc.AppendAccepted(c.local[:0], c.clientXID, oncrpc.SystemError))
	c.rdma.XID = c.clientXID
}

// restoreXID puts the client's XID into the Reply.
func (c *call) restoreXID() {
	if c.rdma.XID != c.clientXID {
		binary.BigEndian.PutUint32(c.reply.parts[0], c.clientXID)
	}
}

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
		if c.held.octets != 0 {
			c.held.host.all.calls.give(c.held.host, c.held.octets)
			c.held = heldMemory{}
		}
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

// reset empties c, for the next Call. The header stays what it was until then (front.newCall): to empty it here would
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

// A result is what became of a Call, as its listener counts it, once for each Call.
type result uint8

const (
	resultGone      result = iota // the client's connection ended before the client had the Reply
	resultReplied                 // the upstream's Reply was delivered
	resultLocal                   // the bridge answered the Call itself
	resultAbsorbed                // it repeats a Call in flight, which has a result of its own
	resultAbandoned               // the client's connection was closed because of it
	resultMalformed               // the message was no RPC Call
	results
)

var resultNames = [results]string{"client_gone", "replied", "local", "absorbed", "abandoned", "malformed"}

// A flag is a bool that one goroutine sets and others read.
type flag struct{ v atomic.Bool }

func (f *flag) set()      { f.v.Store(true) }
func (f *flag) get() bool { return f.v.Load() }
