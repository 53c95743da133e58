package proxy

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// Watching connections to upstreams
//
// Three things can be wrong with a connection that is up, and the proxy notices each in its
// own way.
//
// The host is gone: nothing comes back, not even the answers that TCP gives by itself. The
// transports notice that (SilentTimeout of packages tcpframe and iwarp), on idle connections
// by keepalive, within UpstreamOptions.SilentTimeout. The connection ends, and its Calls go
// elsewhere: fate.go.
//
// The server is there and answers nothing, because it is stopped or waits for a disk. Another
// connection would wait for the same disk, so the proxy makes none until a Call is past its
// deadline. When a connection with Calls has been silent for a while, the proxy sends a NULL Call,
// which every program has. As long as the server does not answer that either, the connection counts
// as stalled. A connection without Calls is probed, too, but seldom (UpstreamOptions.ProbeIdle), so
// that thousands of them cost nothing. With providers that have no keepalive this finds hosts that
// are gone. The transports with keepalive do not need it.
//
// The server answers other Calls and not this one: it has dropped the Call, and with it a
// credit for as long as the connection lives. At the Call's deadline another connection
// replaces this one (pool.Seat.Retire), which ends when its other Calls are answered. A
// NULL Call that was sent later and is answered shows, too, that the server has dropped the Call. A
// lane keeps its connection unless many Calls are dropped: lane_late.go.
//
// That the server answers NULL Calls does not show that it answers others. If it has answered none for long when a Call
// is past its deadline, and there is another endpoint or address, the connection ends at once and the Calls go there:
// pool/null_only.go, addresses.go.
//
// The NULL Call is for a program that the upstream has answered a Call of. Any answer to it
// shows that the server lives.

// A probed is a connection that can send NULL Calls. Its methods run on its loop.
type probed interface {
	upstreamConn
	// ask sends the NULL Call of p, whose message is in p.call.
	ask(p *probe) error
	// unheard is how long the connection has been silent.
	unheard() time.Duration
	// waits reports whether a Call is outstanding.
	waits() bool
}

// A probe watches one connection, with NULL Calls when it is silent. It belongs to the
// connection's loop.
type probe struct {
	u    *upstream // constant, as the next three
	m    probed
	seat *pool.Seat
	loop *eventLoop

	owner connOwner     // of the connection; nil for a shared one; constant
	trial *addressTrial // nil once the server has answered a Call, and for an endpoint that is no name

	entry   pool.Entry // the NULL Call's credit
	call    rdmaside.Call
	msg     *regmem.Lease // holds the NULL Call while it is outstanding
	sentAt  int64         // when the NULL Call was sent, by tcpConn.stamp
	out     bool          // a NULL Call is outstanding
	over    bool          // the connection has ended
	stalled atomic.Bool   // the connection is counted as stalled; changed on the loop
	priming bool          // the NULL Call primes the connection, and has no credit of the pool
	dozing  bool          // no Call was outstanding at the last look, and the next look may be far off: see busy
	woken   time.Time     // when busy ended that
	timer   *time.Timer
}

// probeMetrics count the NULL Calls and the stalled connections of one upstream.
type probeMetrics struct {
	answered, failed, unable *metrics.Counter
	stalled                  *metrics.Gauge
	quiet                    loglimit.Seldom

	// spoken is the program, in the upper half, and the version of the Call that the upstream
	// answered first; 0 before that.
	spoken atomic.Uint64
}

func newProbeMetrics(m *metrics.Registry, upstream string) *probeMetrics {
	probes := func(result string) *metrics.Counter {
		return m.Counter(metrics.UpstreamProbes, upstream, result)
	}
	return &probeMetrics{
		answered: probes("answered"), failed: probes("failed"), unable: probes("unsent"),
		stalled: m.Gauge(metrics.UpstreamStalledConnections, upstream),
	}
}

// spoke notes that the upstream has answered a Call of program and version.
func (pm *probeMetrics) spoke(program, version uint32) {
	if pm.spoken.Load() == 0 {
		pm.spoken.Store(uint64(program)<<32 | uint64(version))
	}
}

// start begins to watch the connection. Any goroutine.
func (p *probe) start() { p.loop.Post((*probeTask)(p)) }

// lookWhileOff is how often a connection looks whether a reload has switched the watch on.
const lookWhileOff = time.Minute

// end ends the watch: the connection has ended with err.
func (p *probe) end(err error) {
	p.over = true
	p.trial.ended(err)
	p.stall(false)
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.out {
		p.done(false)
	}
}

// is reports whether xid is that of the outstanding NULL Call.
func (p *probe) is(xid uint32) bool { return p.out && p.call.XID == xid }

// A probeTask is a probe as the task that looks at the connection.
type probeTask probe

// Run looks at the connection, sends a NULL Call if it has been silent, and sets the timer for
// the next look. loop.Task.
func (t *probeTask) Run() {
	p := (*probe)(t)
	if p.over {
		return
	}
	o := p.u.settings()
	every := o.ProbeInterval
	if every <= 0 { // a reload may switch it on and off
		p.stall(false)
		p.dozing = false
		p.lookIn(lookWhileOff)
		return
	}
	silent, after := p.m.unheard(), every
	if p.dozing = !p.out && !p.m.waits(); p.dozing {
		after = max(every, o.ProbeIdle)
	} else if !p.woken.IsZero() {
		silent = min(silent, time.Since(p.woken)) // the server need not have said anything before
	}
	next := every
	switch {
	case silent < after:
		p.stall(p.stalled.Load() && silent >= every)
		next = after - silent
	case p.out, !p.send() && silent >= 2*every && p.seat.Spent(p.m):
		// The server answers neither the NULL Call nor, when no credit is left to send one,
		// any of the Calls.
		p.stall(true)
	}
	p.lookIn(next)
}

// lookIn sets the timer for the next look.
func (p *probe) lookIn(next time.Duration) {
	// A millisecond more, because the timer may fire just before the connection counts as
	// silent.
	if next += time.Millisecond; p.timer == nil {
		p.timer = time.AfterFunc(next, func() { p.loop.Post((*probeTask)(p)) })
	} else {
		p.timer.Reset(next)
	}
}

// busy notes that a Call is sent on a connection that had none at the last look: the next look is due
// soon. The caller has found that p.dozing is set.
func (p *probe) busy() {
	p.dozing, p.woken = false, time.Now()
	if every := p.u.settings().ProbeInterval; every > 0 && !p.over {
		p.lookIn(every)
	}
}

// sends notes that the connection has sent c.
func (p *probe) sends(c *call) {
	if p.trial != nil && !c.entry.Aside {
		p.trial.carried = true
	}
	if p.dozing {
		p.busy()
	}
}

// replied notes that the server has answered c.
func (p *probe) replied(c *call) {
	if p.trial != nil && !c.entry.Aside {
		p.trial.answered()
		p.trial = nil
	}
}

// stall counts the connection as stalled, or no longer as stalled.
func (p *probe) stall(on bool) {
	if p.stalled.Load() == on {
		return
	}
	p.stalled.Store(on)
	pm := p.u.probes
	if !on {
		pm.stalled.Add(-1)
		return
	}
	pm.stalled.Add(1)
	pm.quiet.Line(&p.u.log, zerolog.WarnLevel, "upstream_stalled").Dur("silent_ms", p.m.unheard()).
		Msg("upstream answers nothing though its host is there; its Calls wait")
}

var errUnasked = errors.New("proxy: a probe cannot be sent")

// send sends a NULL Call if the upstream has answered a program. It reports false when there
// is no credit for the NULL Call.
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
	if p.sendNull(uint32(spoken>>32), uint32(spoken)) != nil {
		pm.unable.Inc()
		p.returnCredit()
	}
	return true
}

// sendNull sends a NULL Call. The error is errUnasked if the connection takes none.
func (p *probe) sendNull(program, version uint32) error {
	if err := p.prepare(program, version); err != nil {
		return err
	}
	if err := p.m.ask(p); err != nil {
		p.release()
		return err
	}
	p.out = true
	return nil
}

// The NULL Call that primes a connection to an upstream that has not answered any Call is one of
// NFS version 3: a server without it answers that.
const primeProgram, primeVersion = oncrpc.ProgramNFS, 3

// prime sends a NULL Call on a connection that is new. The pool learns of the connection's credits
// when it is answered.
func (p *probe) prime() {
	if p.over {
		return
	}
	program, version := uint32(primeProgram), uint32(primeVersion)
	if spoken := p.u.probes.spoken.Load(); spoken != 0 {
		program, version = uint32(spoken>>32), uint32(spoken)
	}
	p.priming = true
	if err := p.sendNull(program, version); err != nil && !errors.Is(err, errUnasked) {
		time.AfterFunc(primeAgain, func() { p.loop.Post(loop.TaskFunc(p.prime)) }) // there is no memory for it
	}
}

// primeAgain is how long prime waits for memory.
const primeAgain = 50 * time.Millisecond

// primed gives the pool the connection's credits, unless the connection has ended or is about to: then the
// server has not shown that it answers.
func (p *probe) primed() {
	p.priming = false
	n := p.m.credits()
	if p.over || n == 0 {
		return
	}
	p.trial.answeredNull()
	if p.owner != nil {
		p.owner.answered()
	}
	p.seat.Granted(n, p.loop.index)
}

// prepare makes the NULL Call.
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

// done ends the NULL Call: it was answered, or the connection has ended.
func (p *probe) done(answered bool) {
	p.out = false
	p.release()
	if answered {
		p.u.probes.answered.Inc()
		p.stall(false)
	} else {
		p.u.probes.failed.Inc()
	}
	if !p.priming {
		p.returnCredit()
		return
	}
	if answered {
		p.u.slowStart.Answered(0, 0, p.loop.index)
	}
	p.primed()
}

// returnCredit returns the credit.
func (p *probe) returnCredit() { p.seat.Done(&p.entry, p.loop.index) }

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
