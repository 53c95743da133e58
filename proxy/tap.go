package proxy

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// Taps
//
// A Tap sees RPC messages where they enter and leave the proxy, for a capture. There are four places
// on the road of a Call and its Reply, and the same four on the way of a reverse Call:
//
//	client --in--> proxy --out--> upstream        the Call
//	client <-out-- proxy <--in--- upstream        its Reply
//
// Without a Tap each place costs the loop one atomic load of a pointer that only SetTap writes. With a
// Tap, the Tap is asked about each Call once, when it is read. The messages of the Calls that it does
// not want cost the loop no more than that.

// A Tap sees messages. Its methods run on loops, several at the same time, and must not block. They
// borrow all that they are given.
type Tap interface {
	// Wants is asked about each Call when it is read, and about each reverse Call at each of its
	// places. The Tap sees the messages of the Call unless Wants returns 0, and gets the answer with each.
	Wants(c *TapCall) uint32
	// Message sees a message.
	Message(m *TapMessage)
	// Over is called after the last message of a Call: its client has the Reply, or never will have it.
	Over(o *TapOver)
	// Ended is called when a connection has ended of which the Tap has seen messages. err may be nil.
	Ended(c *TapConn, loop int, wanted uint32, err error)
}

// A TapCall is a Call that a Tap is asked about.
type TapCall struct {
	Client   netip.AddrPort // not valid for a reverse Call
	Listener string         // "" for a reverse Call
	Upstream string         // "" if the proxy answers the Call itself
	Reverse  bool
	Leg      TapLeg // of a reverse Call

	Program, Version, Procedure uint32
	Operation                   string // the name of a ulb.Operation; "" for a reverse Call
}

// A TapLeg is a side of the proxy.
type TapLeg uint8

// The legs.
const (
	TapClients TapLeg = iota
	TapUpstreams
)

// A TapConn is a connection that messages were seen on. It never changes.
type TapConn struct {
	ID          uint64 // tells all connections of the process apart
	Leg         TapLeg
	RDMA        bool
	Name        string         // of the listener or the upstream
	Local, Peer netip.AddrPort // not valid if the provider does not know
}

// A TapMessage is a message that a Tap sees.
type TapMessage struct {
	Loop   int // the loop that the message is seen on
	Wanted uint32
	Call   uint64 // the same for all messages of a Call, and for no other Call; 0 for reverse Calls
	Conn   *TapConn
	At     time.Time
	Out    bool // it leaves the proxy
	Reply  bool // it is a Reply
	Parts  [][]byte

	// Data and DataLength are the position and length of the octets in Parts that RDMA moves apart
	// from the message, or would move if there were enough of them: what a READ or WRITE is about.
	// DataLength is 0 if there are none.
	Data, DataLength int

	Program, Version, Procedure uint32 // of a Call
	Operation                   string // of a Call and its Reply: the name of a ulb.Operation

	// RDMA says how a Call travels over RDMA. It is for Calls to RDMA upstreams, and zero for others.
	RDMA TapRDMA
	// Granted and Outstanding are the upstream connection's Calls that may be outstanding, and are.
	Granted, Outstanding int
}

// A TapRDMA says how a Call travels over RDMA.
type TapRDMA struct {
	Known    bool
	Shape    ulb.Shape
	Position uint32 // of the Read chunk
	Length   uint32 // of the Read chunk
}

// A TapOver is the end of a Call.
type TapOver struct {
	Loop   int
	Wanted uint32
	Call   uint64
	At     time.Time
	Result string // what became of the Call, as in rdmabridge_listener_calls_total
	Status string // the class of the Reply, one of package status; "" if there is none
	Failed bool   // status.Failure of Status
}

// A callTap is what a call remembers for the Tap.
type callTap struct {
	id     uint64
	wanted uint32 // 0: the Tap does not see the call
}

// A loopTap is a Tap as one loop uses it. It belongs to the loop.
type loopTap struct {
	Tap
	asked   TapCall
	message TapMessage // scratch, as are the others
	over    TapOver
	part    [1][]byte
	conns   map[any]*tapConn // by tapKey; those with messages
}

// tapConns counts the connections of which a Tap has seen messages.
var tapConns atomic.Uint64

// SetTap makes t the Tap from now on; nil for none. Any goroutine. A loop may use the Tap that was there
// before for a little longer.
func (p *Proxy) SetTap(t Tap) {
	for _, l := range p.loops {
		if t == nil {
			l.tap.Store(nil)
			continue
		}
		l.tap.Store(&loopTap{Tap: t, conns: make(map[any]*tapConn)})
	}
}

// A tapped is a connection that a Tap sees messages of.
type tapped interface {
	// tapKey tells the connection from others.
	tapKey() any
	// describeTap says what the Tap is told of the connection.
	describeTap(c *TapConn)
}

// Loops is how many loops there are.
func (p *Proxy) Loops() int { return len(p.loops) }

// A tapConn is what a loop remembers of a connection for its Tap.
type tapConn struct {
	TapConn
	wanted uint32 // the answers for all its messages together
}

// connection returns what is remembered of from, from the first message on.
func (t *loopTap) connection(from tapped, wanted uint32) *TapConn {
	key := from.tapKey()
	k := t.conns[key]
	if k == nil {
		k = &tapConn{TapConn: TapConn{ID: tapConns.Add(1)}}
		from.describeTap(&k.TapConn)
		t.conns[key] = k
	}
	k.wanted |= wanted
	return &k.TapConn
}

// tapEnded tells the Tap that a connection of l has ended with err.
func (l *eventLoop) tapEnded(from tapped, err error) {
	if t := l.tap.Load(); t != nil {
		t.ended(l, from, err)
	}
}

func (t *loopTap) ended(l *eventLoop, from tapped, err error) {
	key := from.tapKey()
	if k := t.conns[key]; k != nil {
		delete(t.conns, key)
		t.Ended(&k.TapConn, l.index, k.wanted, err)
	}
}

// tapKey is part of tapped.
func (f *front) tapKey() any { return f }

// tapKey is part of tapped.
func (m *tcpConn) tapKey() any { return m }

// tapKey is part of tapped.
func (m *rdmaConn) tapKey() any { return m }

// describeTap is part of tapped.
func (f *front) describeTap(c *TapConn) {
	l := f.listener
	c.Leg, c.RDMA, c.Name, c.Peer = TapClients, l.isRDMA, l.name, f.peer
	c.Local = f.client.local()
}

// local is part of client.
func (s *tcpClient) local() netip.AddrPort { return s.conn.LocalAddr() }

// proxy is part of client.
func (s *tcpClient) proxy() netip.AddrPort {
	if a := s.conn.WireAddr(); a != s.peer {
		return a
	}
	return netip.AddrPort{}
}

// local is part of client.
func (s *rdmaClient) local() netip.AddrPort { return s.conn.Info().Local }

// proxy is part of client.
func (s *rdmaClient) proxy() netip.AddrPort { return netip.AddrPort{} }

// describeTap is part of tapped.
func (m *tcpConn) describeTap(c *TapConn) {
	c.Leg, c.Name, c.Local, c.Peer = TapUpstreams, m.u.name, m.conn.LocalAddr(), m.conn.RemoteAddr()
}

// describeTap is part of tapped.
func (m *rdmaConn) describeTap(c *TapConn) { m.describe(c, m.r) }

func (m *rdmaConn) describe(c *TapConn, r *rdmaside.Requester) {
	i := r.Info()
	c.Leg, c.RDMA, c.Name, c.Local, c.Peer = TapUpstreams, true, m.u.name, i.Local, i.Peer
}

// begin prepares the scratch message of t.
func (t *loopTap) begin(l *eventLoop, conn *TapConn, parts [][]byte) *TapMessage {
	m := &t.message
	*m = TapMessage{Loop: l.index, Conn: conn, At: time.Now(), Parts: parts}
	return m
}

// end gives the scratch message to the Tap, and forgets it.
func (t *loopTap) end() {
	t.Message(&t.message)
	t.message, t.part[0] = TapMessage{}, nil
}

// one returns b as the parts of a message.
func (t *loopTap) one(b []byte) [][]byte {
	t.part[0] = b
	return t.part[:]
}

// tapRead has t see c, which f has just read: its header is in c.h, and nothing has been changed.
func (f *front) tapRead(t *loopTap, c *call) {
	h, p := &c.h, f.listener.p
	a := &c.rdma.Analysis
	c.rdma.Binding = p.registry.Analyse(h, a)
	q := &t.asked
	*q = TapCall{Client: f.peer, Listener: f.listener.name, Program: h.Program, Version: h.Version, Procedure: h.Procedure, Operation: c.operation()}
	if u, _, _, _ := f.listener.settings().routes.find(h.Program, h.Version); u != nil {
		q.Upstream = u.name
	}
	w := t.Wants(q)
	if w == 0 {
		return
	}
	f.loop.tapped++
	c.usesSeldom = true
	c.tap = callTap{id: uint64(f.loop.index+1)<<48 | f.loop.tapped, wanted: w}
	m := t.begin(f.loop, t.connection(f, w), t.one(c.rdma.Message))
	m.ofCall(c)
	t.end()
}

// operation is the name of the operation of c.
func (c *call) operation() string {
	return c.owner.front.listener.p.registry.Operations()[c.rdma.Analysis.Operation].Name
}

// ofCall fills in what c says of its Call.
func (m *TapMessage) ofCall(c *call) {
	h := &c.h
	m.Operation = c.operation()
	m.Call, m.Wanted = c.tap.id, c.tap.wanted
	m.Program, m.Version, m.Procedure = h.Program, h.Version, h.Procedure
	m.Data, m.DataLength = c.argumentData()
}

// tapSent has the Tap see c, which is being sent on a connection of l.
func (c *call) tapSent(l *eventLoop, from tapped, granted, outstanding int) {
	t := l.tap.Load()
	if t == nil || c.tap.wanted == 0 {
		return
	}
	m := t.begin(l, t.connection(from, c.tap.wanted), t.one(c.rdma.Message))
	m.ofCall(c)
	m.Out, m.Granted, m.Outstanding = true, granted, outstanding
	if c.up.isRDMA {
		a := &c.rdma.Analysis
		m.RDMA = TapRDMA{Known: true, Shape: c.rdma.Shape}
		switch c.rdma.Shape.Call {
		case ulb.CallReadChunk:
			m.RDMA.Position, m.RDMA.Length = a.ArgPosition, a.ArgLength
		case ulb.CallLong:
			m.RDMA.Length = uint32(len(c.rdma.Message))
		}
	}
	t.end()
}

// tapReply has the Tap see the Reply of c, on a connection of l.
func (c *call) tapReply(l *eventLoop, from tapped, out bool, granted, outstanding int) {
	t := l.tap.Load()
	if t == nil || c.tap.wanted == 0 {
		return
	}
	m := t.begin(l, t.connection(from, c.tap.wanted), c.reply.parts)
	m.Call, m.Wanted, m.Reply, m.Out = c.tap.id, c.tap.wanted, true, out
	m.Granted, m.Outstanding, m.Operation = granted, outstanding, c.operation()
	m.Data, m.DataLength = c.replyData()
	t.end()
}

// argumentData returns where in the message of c the data of a WRITE are.
func (c *call) argumentData() (pos, length int) {
	a, h := &c.rdma.Analysis, &c.h
	if a.ArgLength > 0 || h.Protection != oncrpc.ProtectIntegrity || c.rdma.Binding == nil {
		return int(a.ArgPosition), int(a.ArgLength)
	}
	// Analyse says nothing of data that must not be reduced.
	var own ulb.Analysis
	l := c.owner.front.listener.p.registry.Limits()
	c.rdma.Binding.Analyse(h, &l, &own)
	return int(own.ArgPosition), int(own.ArgLength)
}

// replyData returns where in the Reply the data of the first READ are. Parts of a Reply that came over
// RDMA begin and end where the data do.
func (c *call) replyData() (pos, length int) {
	parts := c.reply.parts
	switch {
	case c.rdma.Binding == nil:
		return 0, 0
	case len(parts) > 1:
		return len(parts[0]), len(parts[1])
	}
	m := parts[0]
	var r oncrpc.Reply
	if oncrpc.ParseReply(m, &r) != nil || !r.Succeeded() {
		return 0, 0
	}
	from := r.Results
	switch c.h.Protection {
	case oncrpc.ProtectNone:
	case oncrpc.ProtectIntegrity:
		// databody_integ<>: seq_num, results. RFC 2203 Section 5.3.3.2.
		if len(m) < from+8 {
			return 0, 0
		}
		end := uint64(from) + 4 + uint64(binary.BigEndian.Uint32(m[from:]))
		m, from = m[:min(end, uint64(len(m)))], from+8
	default:
		return 0, 0
	}
	var items [1]ulb.Splice
	if n, err := c.rdma.Binding.ResultItems(c.h.Procedure, m, from, items[:]); err != nil || n == 0 {
		return 0, 0
	}
	return int(items[0].Pos), int(items[0].Length)
}

// tapDelivered has the Tap see the Reply of c, which is about to go to the client.
func (f *front) tapDelivered(c *call) {
	if f.loop.tapping() {
		c.tapReply(f.loop, f, true, 0, 0)
	}
}

// tapOver tells the Tap that c is over.
func (f *front) tapOver(c *call) {
	if f.loop.tapping() {
		f.tellOver(c)
	}
}

func (f *front) tellOver(c *call) {
	t := f.loop.tap.Load()
	if t == nil || c.tap.wanted == 0 {
		return
	}
	t.over = TapOver{Loop: f.loop.index, Call: c.tap.id, Wanted: c.tap.wanted, At: time.Now(), Result: resultNames[c.result]}
	if c.octets > 0 {
		t.over.Status, t.over.Failed = classNames[c.class], classFails[c.class]
	}
	t.Over(&t.over)
	t.over = TapOver{}
}

// tapSent has the Tap see c, which is being sent.
func (m *tcpConn) tapSent(c *call) {
	c.tapSent(m.loop, m, m.opts.Credits, m.pending.Len())
}

// tapReply has the Tap see the Reply of c, which has just come.
func (m *tcpConn) tapReply(c *call) {
	c.tapReply(m.loop, m, false, m.opts.Credits, m.pending.Len())
}

// tapSent has the Tap see c, which has just been sent.
func (m *rdmaConn) tapSent(c *call) {
	c.tapSent(m.loop, m, m.r.Grant(), m.r.Outstanding())
}

// tapReply has the Tap see the Reply of c, which has just come.
func (m *rdmaConn) tapReply(c *call) {
	c.tapReply(m.loop, m, false, m.r.Grant(), m.r.Outstanding())
}

// tapReverse has the Tap see a message of the reverse direction, on a connection of l.
func tapReverse(l *eventLoop, from tapped, m []byte, out, reply bool) {
	if t := l.tap.Load(); t != nil {
		t.reverse(l, from, m, out, reply)
	}
}

func (t *loopTap) reverse(l *eventLoop, from tapped, m []byte, out, reply bool) {
	conn := t.connection(from, 0)
	q := &t.asked
	*q = TapCall{Reverse: true, Leg: conn.Leg}
	switch conn.Leg {
	case TapClients:
		q.Listener, q.Client = conn.Name, conn.Peer
	case TapUpstreams:
		q.Upstream = conn.Name
	}
	if !reply {
		var h oncrpc.Call
		if oncrpc.ParseCall(m, &h) == nil {
			q.Program, q.Version, q.Procedure = h.Program, h.Version, h.Procedure
		}
	}
	w := t.Wants(q)
	if w == 0 {
		return
	}
	t.connection(from, w)
	g := t.begin(l, conn, t.one(m))
	g.Wanted, g.Out, g.Reply = w, out, reply
	g.Program, g.Version, g.Procedure = q.Program, q.Version, q.Procedure
	t.end()
}

// A rdmaReverse is an rdmaConn as the handler of the reverse Calls of its server.
type rdmaReverse rdmaConn

// ReverseCall has a reverse Call brought to the client. rdmaside.ReverseHandler.
func (v *rdmaReverse) ReverseCall(r *rdmaside.Requester, m *regmem.Lease) bool {
	from := &rdmaReverser{(*rdmaConn)(v), r}
	tapReverse(v.loop, from, m.Bytes(), false, false)
	return v.owner.callBackRDMA(from, m)
}

// A rdmaReverser is the connection r of m as a reverser. m may not know r yet.
type rdmaReverser struct {
	m *rdmaConn
	r *rdmaside.Requester
}

// tapKey is part of tapped.
func (v *rdmaReverser) tapKey() any { return v.m }

// describeTap is part of tapped.
func (v *rdmaReverser) describeTap(c *TapConn) { v.m.describe(c, v.r) }

// ReverseReply is part of reverser.
func (v *rdmaReverser) ReverseReply(xid uint32, m []byte, done rdmaside.Releaser) error {
	if !v.m.probe.over { // the Tap knows no connection that has ended
		tapReverse(v.m.loop, v, m, true, true)
	}
	return v.r.ReverseReply(xid, m, done)
}

// ReverseRefuse is part of reverser.
func (v *rdmaReverser) ReverseRefuse(xid uint32) { v.r.ReverseRefuse(xid) }
