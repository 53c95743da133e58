package observe

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A LoopTap is a Tap as one loop uses it. It belongs to the loop.
type LoopTap struct {
	Tap
	sampler Sampler // the Tap, if it is one; nil if not
	loop    int     // the loop's index
	asked   TapCall
	message TapMessage // scratch, as are the others
	over    TapOver
	part    [1][]byte
	conns   map[any]*tapConn // by TapKey; those with messages
}

// NewLoopTap makes t the Tap of a loop.
func NewLoopTap(t Tap, loop int) *LoopTap {
	s, _ := t.(Sampler)
	return &LoopTap{Tap: t, sampler: s, loop: loop, conns: make(map[any]*tapConn)}
}

// A TapMark is what a Call carries for the Tap.
type TapMark struct {
	id     uint64
	wanted uint32 // 0: the Tap does not see the Call
	passed bool   // another Call is in its place: PassOn
	stands bool   // it is in the place of another Call

	refused   bool // the Tap refuses the Call
	postponed bool // the client was told so
}

// Refused reports whether the Tap has set TapMessage.Refuse.
func (k *TapMark) Refused() bool { return k.refused }

// Postpone notes that the Call is not executed because the Tap has refused it.
func (k *TapMark) Postpone() { k.postponed = true }

// PassOn notes that the Call of next, which repeats that of k, is in its place from now on, unless it is refused.
func (k *TapMark) PassOn(next *TapMark) {
	if k.Seen() && next.Seen() && !next.refused {
		k.passed, next.stands = true, true
	}
}

// Seen reports whether the Tap sees the Call.
func (k *TapMark) Seen() bool { return k.wanted != 0 }

// SeenUpstream reports whether the Tap sees the Call and its Reply on the connection to the upstream, too: Sent, Replied.
func (k *TapMark) SeenUpstream() bool { return k.wanted != 0 && k.wanted&TapClientsAlone == 0 }

// A Tapped is a connection that a Tap sees messages of.
type Tapped interface {
	// TapKey tells the connection from others.
	TapKey() any
	// DescribeTap says what the Tap is told of the connection.
	DescribeTap(c *TapConn)
}

// A TapView is a Call as its messages are seen.
type TapView struct {
	Registry *ulb.Registry
	Header   *oncrpc.Call
	Binding  ulb.Binding // nil for none
	Analysis *ulb.Analysis
	Message  []byte
	Reply    [][]byte
	Shape    *ulb.Shape // how it travels over RDMA; nil if it does not

	Granted, Outstanding int // of the connection to the upstream that the message is seen on
}

// tapConns and tapCalls count the connections and the Calls of which a Tap has seen messages.
var tapConns, tapCalls atomic.Uint64

// A tapConn is what a loop remembers of a connection for its Tap.
type tapConn struct {
	TapConn
	wanted uint32 // the answers for all its messages together
}

// connection returns what is remembered of from, from the first message on.
func (t *LoopTap) connection(from Tapped, wanted uint32) *TapConn {
	key := from.TapKey()
	k := t.conns[key]
	if k == nil {
		k = &tapConn{TapConn: TapConn{ID: tapConns.Add(1)}}
		from.DescribeTap(&k.TapConn)
		t.conns[key] = k
	}
	k.wanted |= wanted
	return &k.TapConn
}

// Looks reports whether the Tap is to be asked about a Call for o: Begun.
func (t *LoopTap) Looks(now int64, o *ulb.Operation) bool {
	if t.sampler == nil {
		return true
	}
	t.asked.Lookers = t.sampler.Looks(t.loop, now, o)
	return t.asked.Lookers != 0
}

// Begun asks the Tap about a Call that a client has sent on the connection from, and has it see the message, in which
// nothing has been changed. Looks has just said so. The caller has filled in c what the view does not say. The mark is
// for the later messages.
func (t *LoopTap) Begun(from Tapped, c TapCall, v *TapView) (k TapMark) {
	h := v.Header
	c.Lookers = t.asked.Lookers
	t.asked = c
	t.asked.Program, t.asked.Version, t.asked.Procedure, t.asked.Operation = h.Program, h.Version, h.Procedure, v.operation()
	if k.wanted = t.Wants(&t.asked); k.wanted == 0 {
		return k
	}
	k.id = tapCalls.Add(1)
	m := t.begin(t.connection(from, k.wanted), t.one(v.Message))
	m.ofCall(k, v)
	m.Identity = c.Identity
	k.refused = t.end()
	return k
}

// Sent has the Tap see the Call of k, which is sent on the connection from.
func (t *LoopTap) Sent(from Tapped, k TapMark, v *TapView) {
	m := t.begin(t.connection(from, k.wanted), t.one(v.Message))
	m.ofCall(k, v)
	m.Out, m.Granted, m.Outstanding = true, v.Granted, v.Outstanding
	if v.Shape != nil {
		m.RDMA = TapRDMA{Known: true, Shape: *v.Shape}
		switch v.Shape.Call {
		case ulb.CallReadChunk:
			m.RDMA.Position, m.RDMA.Length = v.Analysis.ArgPosition, v.Analysis.ArgLength
		case ulb.CallLong:
			m.RDMA.Length = uint32(len(v.Message))
		}
	}
	t.end()
}

// Replied has the Tap see the Reply to the Call of k on the connection from, which it leaves the proxy on if out is set.
func (t *LoopTap) Replied(from Tapped, k TapMark, v *TapView, out bool) {
	m := t.begin(t.connection(from, k.wanted), v.Reply)
	m.Call, m.Wanted, m.Reply, m.Out = k.id, k.wanted, true, out
	m.Granted, m.Outstanding, m.Operation = v.Granted, v.Outstanding, v.operation()
	m.Data, m.DataLength = v.replyData()
	t.end()
}

// Settled tells the Tap that the Call of k and p is over.
func (t *LoopTap) Settled(k TapMark, p *Progress) {
	t.over = TapOver{Loop: t.loop, Call: k.id, Wanted: k.wanted, At: time.Now(), Result: p.Result.String(), Sent: p.Sent != 0 || k.stands}
	t.over.Postponed = k.postponed
	t.over.Repeated = k.passed || p.Result == ResultAbsorbed || p.Absorbed && !k.stands
	if p.Octets > 0 {
		t.over.Status, t.over.Failed = p.Class.String(), p.Class.Fails()
	}
	t.Over(&t.over)
	t.over = TapOver{}
}

// ConnEnded tells the Tap that the connection from has ended with err.
func (t *LoopTap) ConnEnded(from Tapped, err error) {
	key := from.TapKey()
	if k := t.conns[key]; k != nil {
		delete(t.conns, key)
		t.Ended(&k.TapConn, t.loop, k.wanted, err)
	}
}

// Reverse has the Tap see a message of the reverse direction, on the connection from.
func (t *LoopTap) Reverse(from Tapped, m []byte, out, reply bool) {
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
	g := t.begin(conn, t.one(m))
	g.Wanted, g.Out, g.Reply = w, out, reply
	g.Program, g.Version, g.Procedure = q.Program, q.Version, q.Procedure
	t.end()
}

// begin prepares the scratch message of t.
func (t *LoopTap) begin(conn *TapConn, parts [][]byte) *TapMessage {
	m := &t.message
	*m = TapMessage{Loop: t.loop, Conn: conn, At: time.Now(), Parts: parts}
	return m
}

// end gives the scratch message to the Tap, and forgets it. It returns whether the Tap refuses it.
func (t *LoopTap) end() (refused bool) {
	t.Message(&t.message)
	refused = t.message.Refuse
	t.message, t.part[0] = TapMessage{}, nil
	return refused
}

// one returns b as the parts of a message.
func (t *LoopTap) one(b []byte) [][]byte {
	t.part[0] = b
	return t.part[:]
}

// ofCall fills in what v says of a Call.
func (m *TapMessage) ofCall(k TapMark, v *TapView) {
	h := v.Header
	m.Operation = v.operation()
	m.Call, m.Wanted = k.id, k.wanted
	m.Program, m.Version, m.Procedure = h.Program, h.Version, h.Procedure
	m.Data, m.DataLength = v.argumentData()
}

// operation is the name of the operation.
func (v *TapView) operation() string { return v.Registry.Operations()[v.Analysis.Operation].Name }

// argumentData returns where in the message the data of a WRITE are.
func (v *TapView) argumentData() (pos, length int) {
	a, h := v.Analysis, v.Header
	if a.ArgLength > 0 || h.Protection != oncrpc.ProtectIntegrity || v.Binding == nil {
		return int(a.ArgPosition), int(a.ArgLength)
	}
	// Analyse says nothing of data that must not be reduced.
	var own ulb.Analysis
	l := v.Registry.Limits()
	v.Binding.Analyse(h, &l, &own)
	return int(own.ArgPosition), int(own.ArgLength)
}

// replyData returns where in the Reply the data of the first READ are. Parts of a Reply that came over
// RDMA begin and end where the data do.
func (v *TapView) replyData() (pos, length int) {
	parts := v.Reply
	switch {
	case v.Binding == nil:
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
	switch v.Header.Protection {
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
	if n, err := v.Binding.ResultItems(v.Header.Procedure, m, from, items[:]); err != nil || n == 0 {
		return 0, 0
	}
	return int(items[0].Pos), int(items[0].Length)
}
