package reach

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Watching connections to upstreams
//
// Three things can be wrong with a connection that is up, and the proxy notices each in its
// own way.
//
// The host is gone: nothing comes back, not even the answers that TCP gives by itself. The
// transports notice that (SilentTimeout of packages tcpframe and iwarp), on idle connections
// by keepalive, within a time that is configured. The connection ends, and its
// Calls go elsewhere.
//
// The server is there and answers nothing, because it is stopped or waits for a disk. Another
// connection would wait for the same disk, so the proxy makes none until a Call is past its
// deadline. When a connection with Calls has been silent for a while, the proxy sends a NULL Call,
// which every program has. As long as the server does not answer that either, the connection counts
// as stalled. A connection without Calls is probed, too, but seldom (Watch.Set), so
// that thousands of them cost nothing. With providers that have no keepalive this finds hosts that
// are gone. The transports with keepalive do not need it.
//
// The server answers other Calls and not this one: it has dropped the Call, and with it a
// credit for as long as the connection lives. At the Call's deadline another connection
// replaces this one (pool.Seat.Retire), which ends when its other Calls are answered. A
// NULL Call that was sent later and is answered shows, too, that the server has dropped the Call. The
// owner of a connection may keep it all the same, unless many Calls are dropped.
//
// That the server answers NULL Calls does not show that it answers others. If it has answered none for
// long when a Call is past its deadline, and there is another endpoint or address, the connection ends
// at once and the Calls go there: pool/endpoints/null_only.go, Addresses.
//
// The NULL Call is for a program that the upstream has answered a Call of. Any answer to it
// shows that the server lives.

// A Conn is a connection that can send NULL Calls. Its methods run on its loop.
type Conn interface {
	pool.Member
	// Ask sends message, which is a NULL Call with this XID, and keeps no part of it. The error is ErrUnasked
	// if the connection takes no Call any more.
	Ask(xid uint32, message []byte) error
	// Unheard is how long the connection has been silent.
	Unheard() time.Duration
	// Network is what the kernel knows of the TCP connection. It reports false where there is none.
	Network() (loop.TCP, bool)
	// Waits reports whether a Call is outstanding.
	Waits() bool
	// Credits is how many Calls may be outstanding now.
	Credits() int
}

// A Probe watches one connection, with NULL Calls when it is silent. It belongs to the
// connection's loop.
type Probe struct {
	w      *Watch // constant, as the next three
	conn   Conn
	seat   *pool.Seat
	loop   loop.Loop
	primed func() // called when the server has answered for the first time; nil for nothing; constant
	trial  *Trial // nil once the server has answered a Call, and for an endpoint that is no name

	entry   pool.Entry // the NULL Call's credit
	xid     uint32     // the NULL Call's
	message [nullLen]byte
	out     bool        // a NULL Call is outstanding
	over    bool        // the connection has ended
	stalled atomic.Bool // the connection is counted as stalled; changed on the loop
	priming bool        // the NULL Call primes the connection, and has no credit of the pool
	dozing  bool        // no Call was outstanding at the last look, and the next look may be far off: see busy
	woken   time.Time   // when busy ended that
	timer   *time.Timer
}

// Init says what p watches: c, which is about to be dialled for seat s on the loop l. t learns whether the server answers,
// and primed is called when it has done so; both may be nil. The loop may call End as soon as it has the connection.
func (p *Probe) Init(w *Watch, c Conn, s *pool.Seat, l loop.Loop, t *Trial, primed func()) {
	p.w, p.conn, p.seat, p.loop, p.trial, p.primed = w, c, s, l, t, primed
}

// Start begins to watch the connection, which was dialled, and primes it: the pool learns of its credits when the server
// has answered a first NULL Call. Any goroutine.
func (p *Probe) Start() {
	p.loop.Post(loop.TaskFunc(p.prime))
	p.loop.Post((*probeTask)(p))
}

// lookWhileOff is how often a connection looks whether a reload has switched the watch on.
const lookWhileOff = time.Minute

// End ends the watch: the connection has ended with err.
func (p *Probe) End(err error) {
	p.over = true
	p.trial.ended(err)
	p.stall(false)
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.out {
		p.Done(false)
	}
}

// Is reports whether xid is that of the outstanding NULL Call.
func (p *Probe) Is(xid uint32) bool { return p.out && p.xid == xid }

// Out reports whether a NULL Call is outstanding.
func (p *Probe) Out() bool { return p.out }

// Over reports whether the connection has ended.
func (p *Probe) Over() bool { return p.over }

// Stalled reports whether the server answers nothing. Any goroutine.
func (p *Probe) Stalled() bool { return p.stalled.Load() }

// A probeTask is a Probe as the task that looks at the connection.
type probeTask Probe

// Run looks at the connection, sends a NULL Call if it has been silent, and sets the timer for
// the next look. loop.Task.
func (t *probeTask) Run() {
	p := (*Probe)(t)
	if p.over {
		return
	}
	every, idle := p.w.settings()
	if every <= 0 { // a reload may switch it on and off
		p.stall(false)
		p.dozing = false
		p.lookIn(lookWhileOff)
		return
	}
	silent, after := p.conn.Unheard(), every
	if p.dozing = !p.out && !p.conn.Waits(); p.dozing {
		after = max(every, idle)
	} else if !p.woken.IsZero() {
		silent = min(silent, time.Since(p.woken)) // the server need not have said anything before
	}
	next := every
	switch {
	case silent < after:
		p.stall(p.stalled.Load() && silent >= every)
		next = after - silent
	case p.out, !p.send() && silent >= 2*every && p.seat.Spent(p.conn):
		// The server answers neither the NULL Call nor, when no credit is left to send one,
		// any of the Calls.
		p.stall(true)
	}
	p.lookIn(next)
}

// lookIn sets the timer for the next look.
func (p *Probe) lookIn(next time.Duration) {
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
func (p *Probe) busy() {
	p.dozing, p.woken = false, time.Now()
	if every, _ := p.w.settings(); every > 0 && !p.over {
		p.lookIn(every)
	}
}

// Sent notes that the connection has sent the Call of e.
func (p *Probe) Sent(e *pool.Entry) {
	if p.trial != nil && !e.Aside {
		p.trial.carried = true
	}
	if p.dozing {
		p.busy()
	}
}

// Replied notes that the server has answered the Call of e.
func (p *Probe) Replied(e *pool.Entry) {
	if p.trial != nil && !e.Aside {
		p.trial.answered()
		p.trial = nil
	}
}

// stall counts the connection as stalled, or no longer as stalled.
func (p *Probe) stall(on bool) {
	if p.stalled.Load() == on {
		return
	}
	p.stalled.Store(on)
	if !on {
		p.w.stalled.Add(-1)
		return
	}
	p.w.stalled.Add(1)
	text := "upstream answers nothing though its host is there; its Calls wait"
	if t, ok := p.conn.Network(); ok && t.Away {
		text = "upstream answers nothing, and its host acknowledges nothing: the network or the host is away; its Calls wait"
	}
	p.w.quiet.Line(p.w.log, zerolog.WarnLevel, "upstream_stalled").Dur("silent_ms", p.conn.Unheard()).Msg(text)
}

// ErrUnasked reports that a connection takes no NULL Call any more.
var ErrUnasked = errors.New("proxy/reach: a probe cannot be sent")

// send sends a NULL Call if the upstream has answered a program. It reports false when there
// is no credit for the NULL Call.
func (p *Probe) send() bool {
	program, version, ok := p.w.spokenTo()
	if !ok {
		return true
	}
	if !p.seat.Borrow(p.conn, &p.entry) {
		p.w.unable.Inc()
		return false
	}
	if p.sendNull(program, version) != nil {
		p.w.unable.Inc()
		p.returnCredit()
	}
	return true
}

// sendNull sends a NULL Call. The error is ErrUnasked if the connection takes none.
func (p *Probe) sendNull(program, version uint32) error {
	p.xid = p.w.newXID()
	// RFC 5531 Section 9: XID, CALL, RPC version, program, version, procedure 0, AUTH_NONE twice.
	for i, word := range [nullLen / 4]uint32{p.xid, oncrpc.TypeCall, oncrpc.RPCVersion, program, version} {
		binary.BigEndian.PutUint32(p.message[4*i:], word)
	}
	if err := p.conn.Ask(p.xid, p.message[:]); err != nil {
		return err
	}
	p.out = true
	return nil
}

// nullLen is the length of a NULL Call.
const nullLen = 40

// prime sends a NULL Call on a connection that is new. The pool learns of the connection's credits
// when it is answered.
func (p *Probe) prime() {
	if p.over {
		return
	}
	program, version := p.w.Program()
	p.priming = true
	if err := p.sendNull(program, version); err != nil && !errors.Is(err, ErrUnasked) {
		time.AfterFunc(primeAgain, func() { p.loop.Post(loop.TaskFunc(p.prime)) }) // there is no memory for it
	}
}

// primeAgain is how long prime waits for memory.
const primeAgain = 50 * time.Millisecond

// grant gives the pool the connection's credits, unless the connection has ended or is about to: then the
// server has not shown that it answers.
func (p *Probe) grant() {
	p.priming = false
	n := p.conn.Credits()
	if p.over || n == 0 {
		return
	}
	p.trial.answeredNull()
	if p.primed != nil {
		p.primed()
	}
	p.seat.Granted(n, p.conn.Affinity())
}

// Done ends the NULL Call: it was answered, or the connection has ended.
func (p *Probe) Done(answered bool) {
	p.out = false
	if answered {
		p.w.answered.Inc()
		p.stall(false)
	} else {
		p.w.failed.Inc()
	}
	if !p.priming {
		p.returnCredit()
		return
	}
	if answered {
		p.w.slowStart.Answered(0, 0, p.conn.Affinity())
	}
	p.grant()
}

// returnCredit returns the credit.
func (p *Probe) returnCredit() { p.seat.Done(&p.entry, p.conn.Affinity()) }
