package proxy

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// Watching connections to upstreams
//
// Three things can be wrong with a connection that is up, and each has its own watch.
//
// The host is gone: nothing comes back, not even what TCP answers by itself. The
// transports find that out (SilentTimeout of packages tcpframe and iwarp), on idle
// connections by keepalive, within UpstreamOptions.SilentTimeout. The connection ends,
// and its Calls go elsewhere: fate.go.
//
// The server is there and answers nothing: it is stopped, or waits for a disk. Another
// connection would wait for the same disk, so there is none until a Call is past its
// deadline. A connection that nothing was heard on for a while is asked, with a NULL
// Call, which every program has; while that is not answered either, the connection
// counts as stalled. This shows on connections without Calls too, and on providers
// without keepalive it is what finds a host that is gone.
//
// The server answers others and not this Call: it has dropped it, and with it a credit
// for as long as the connection lives. At the Call's deadline another connection takes
// the seat (pool.Seat.Retire), and this one ends when its other Calls are answered. A
// NULL Call that was answered meanwhile is how one Call that takes long is told from a
// server that does.
//
// The program asked is one that the upstream has answered a Call of. Whatever it says
// to the NULL Call shows that it lives.

// A probed is a connection that can be asked. Methods run on its loop.
type probed interface {
	upstreamConn
	// ask sends the NULL Call of p, whose message is in p.call.
	ask(p *probe) error
	// unheard is for how long nothing was heard on the connection.
	unheard() time.Duration
}

// A probe asks one connection whether the server is there. Owned by its loop.
type probe struct {
	u    *upstream // constant, as the next three
	m    probed
	seat *pool.Seat
	loop *eventLoop

	entry   pool.Entry // the NULL Call's credit
	call    rdmaside.Call
	msg     *regmem.Lease // of call, while it is out
	sentAt  time.Time
	out     bool // asked and not answered
	over    bool // the connection has ended
	stalled bool // counted as such
	timer   *time.Timer
}

// probeMetrics count what the probes of one upstream find.
type probeMetrics struct {
	answered, failed, unable *metrics.Counter
	stalled                  *metrics.Gauge
	quiet                    quiet

	// spoken is the program, in the upper half, and the version that the upstream
	// answered first; 0 before it did.
	spoken atomic.Uint64
}

func newProbeMetrics(m *metrics.Registry, upstream string) *probeMetrics {
	probes := func(result string) *metrics.Counter {
		return m.Counter("upstream_probes_total", "NULL Calls to see whether the upstream is there, by how they ended: answered; failed, with their connection; unsent for want of a credit.",
			"upstream", upstream, "result", result)
	}
	return &probeMetrics{
		answered: probes("answered"), failed: probes("failed"), unable: probes("unsent"),
		stalled: m.Gauge("upstream_stalled_connections", "Connections whose server answers nothing though its host is there.", "upstream", upstream),
	}
}

// spoke notes that the upstream has answered a Call of program and version.
func (pm *probeMetrics) spoke(program, version uint32) {
	if pm.spoken.Load() == 0 {
		pm.spoken.Store(uint64(program)<<32 | uint64(version))
	}
}

// start begins to watch the connection, once it is there. Any goroutine.
func (p *probe) start() {
	if p.u.settings().ProbeInterval > 0 {
		p.loop.Post((*probeTask)(p))
	}
}

// end is the end of the connection. On the loop.
func (p *probe) end() {
	p.over = true
	p.stall(false)
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.out {
		p.done(false)
	}
}

// is reports whether xid is that of a NULL Call that is out.
func (p *probe) is(xid uint32) bool { return p.out && p.call.XID == xid }

// A probeTask is a probe that looks at its connection.
type probeTask probe

// Run is the look. loop.Task.
func (t *probeTask) Run() {
	p := (*probe)(t)
	if p.over {
		return
	}
	every := p.u.settings().ProbeInterval
	if every <= 0 {
		return // until there is another connection
	}
	silent := p.m.unheard()
	next := every
	switch {
	case silent < every:
		p.stall(false)
		next = every - silent
	case p.out, !p.send() && silent >= 2*every && p.seat.Spent(p.m):
		// It does not answer the probe, or all the Calls that it has credits for.
		p.stall(true)
	}
	// A millisecond more: at the very moment it would be too early.
	if next += time.Millisecond; p.timer == nil {
		p.timer = time.AfterFunc(next, func() { p.loop.Post(t) })
	} else {
		p.timer.Reset(next)
	}
}

// stall counts the connection as stalled, or no longer.
func (p *probe) stall(on bool) {
	if p.stalled == on {
		return
	}
	p.stalled = on
	pm := p.u.probes
	if !on {
		pm.stalled.Add(-1)
		return
	}
	pm.stalled.Add(1)
	if n := pm.quiet.line(); n > 0 {
		p.u.log.Warn().Int("connections", n).Dur("silent_ms", p.m.unheard()).
			Msg("upstream answers nothing though its host is there; its Calls wait")
	}
}

var errUnasked = errors.New("proxy: a probe cannot be sent")

// send asks, if there is something to ask and a credit to ask it with. It reports false
// if there is none.
func (p *probe) send() bool {
	pm := p.u.probes
	spoken := pm.spoken.Load()
	if spoken == 0 {
		return true
	}
	if !p.seat.Borrow(p.m, &p.entry) {
		pm.unable.Inc()
		return false
	}
	if err := p.prepare(uint32(spoken>>32), uint32(spoken)); err != nil {
		pm.unable.Inc()
		p.back()
		return true
	}
	if err := p.m.ask(p); err != nil {
		pm.unable.Inc()
		p.release()
		p.back()
		return true
	}
	p.out, p.sentAt = true, time.Now()
	return true
}

// prepare makes the Call.
func (p *probe) prepare(program, version uint32) error {
	// RFC 5531 Section 9: XID, CALL, RPC version, program, version, procedure 0,
	// AUTH_NONE twice.
	l, err := p.loop.replies.Lease(40)
	if err != nil {
		return err
	}
	p.msg = l
	b := l.Bytes()
	xid := p.u.p.xids.fresh()
	for i, w := range []uint32{xid, oncrpc.TypeCall, 2, program, version, 0, 0, 0, 0, 0} {
		binary.BigEndian.PutUint32(b[4*i:], w)
	}
	p.call = rdmaside.Call{XID: xid, Message: b, Owner: p}
	var h oncrpc.Call
	if err := oncrpc.ParseCall(b, &h); err != nil {
		panic("BUG: proxy: a NULL Call is none: " + err.Error())
	}
	p.call.Binding = p.u.p.registry.Analyse(&h, &p.call.Analysis)
	return nil
}

// done is the end of the NULL Call: it was answered, or its connection has ended.
func (p *probe) done(answered bool) {
	p.out = false
	p.release()
	if answered {
		p.u.probes.answered.Inc()
		p.stall(false)
	} else {
		p.u.probes.failed.Inc()
	}
	p.back()
}

// back gives the credit back.
func (p *probe) back() { p.seat.Done(&p.entry, p.loop.index) }

func (p *probe) release() {
	p.msg.Release()
	p.msg, p.call.Message = nil, nil
}

// CallDone is part of rdmaside.CallOwner.
func (p *probe) CallDone(c *rdmaside.Call, err *rdmaside.CallError) {
	if err == nil {
		c.Reply.Release()
	} else if p.m.credits() == 0 {
		p.seat.Closing(p.m)
	}
	p.done(err == nil || err.Fate == rdmaside.Answered)
}
