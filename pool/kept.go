package pool

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/keeper"
)

// A kept is a seat as its Keeper sees it, which keeps a connection on it: the methods of keeper.Seat.
type kept struct{ *Seat }

// Settings returns the settings that hold now.
func (k kept) Settings() keeper.Settings {
	s, o := k.Seat, k.pool.options()
	ks := keeper.Settings{
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, DialTimeout: o.DialTimeout,
		Health: o.Health, Dials: o.Dials, Errors: s.pool.metrics.dialErrors,
		Prefer: o.Prefer + s.index, Keep: o.KeepEndpoint, Returns: o.returns(),
		HostGone: o.HostGone, Local: o.Local, Failed: o.Failed,
	}
	if f := o.Improve; f != nil {
		ks.Improve = func() time.Duration { return f(s) }
	}
	return ks
}

// Goes reports whether the seat is in the pool and does not sleep. If it reports false, the goroutine of the seat ends.
func (k kept) Goes() bool {
	if k.discarded() {
		return false
	}
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	k.running = !k.asleep
	return k.running
}

// Dial makes a connection that gets no Calls yet.
func (k kept) Dial(ctx context.Context, addr string, improving bool) (keeper.Conn, <-chan struct{}, error) {
	s, p := k.Seat, k.pool
	granted := make(chan struct{})
	p.mu.Lock()
	s.generation, s.granted = p.generation, granted
	s.dialled, s.others, s.carried, s.lastAnswer = time.Now(), false, false, 0
	p.mu.Unlock()
	s.improving = improving
	m, err := p.dialer.Dial(ctx, addr, s.affinity, s)
	if err == nil {
		s.made = m
		p.metrics.reconnects.Inc()
	}
	return m, granted, err
}

// Connected makes the connection that was dialled that of the seat, unless Close or Update came first.
func (k kept) Connected(addr string) {
	s, p := k.Seat, k.pool
	p.mu.Lock()
	unwanted, told := p.closed || s.retired, p.opts.Connected
	if s.asleep {
		p.wake(s) // it fell asleep during the attempt; rest closes the connection
	}
	s.setMember(s.made, addr, unwanted)
	p.renewNext()
	p.mu.Unlock()
	if unwanted {
		s.made.Close(ErrClosed)
	} else if told != nil {
		told(addr)
	}
	p.leaveNullOnly() // the endpoint may have been ejected meanwhile
	p.kick(Elsewhere)
}

// Ended notes that the seat has no connection any more.
func (k kept) Ended() (out keeper.Outcome) {
	s, p := k.Seat, k.pool
	p.mu.Lock()
	out.Missed = len(p.opts.Endpoints) > 1 && !s.retired && !s.asleep && !s.resting
	out.Fruitless = s.carried && s.lastAnswer == 0
	out.Rested, s.resting = s.resting, false
	s.open = nil
	s.lost() // Closing and Ended had no effect if they ran before setMember
	s.endTryOut()
	p.mu.Unlock()
	out.Over = s.discarded()
	return out
}

// Failed notes err for Stats.
func (k kept) Failed(addr string, err error) {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	k.lastErr, k.endpoint = err, addr
}

// LeaveMute closes the seat's connection if its server has not granted a credit and there is another
// endpoint or address. A credit that comes now has no effect.
func (k kept) LeaveMute() {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	if k.granted != nil && !k.retired && (len(k.pool.opts.Endpoints) > 1 || k.others) && k.open != nil {
		k.pool.closeSoon(k.open, keeper.ErrMute)
		k.clearMember()
	}
}

// LeaveNullOnly does what Pool.leaveNullOnly does.
func (k kept) LeaveNullOnly() { k.pool.leaveNullOnly() }

// Beside returns a new seat that may replace the seat. It counts as retired meanwhile.
func (k kept) Beside() (*keeper.Keeper, keeper.Candidate, bool) {
	s, p := k.Seat, k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	unwanted := p.closed || s.retired
	if s.member == nil {
		return nil, nil, unwanted
	}
	n := p.newSeat(s.index)
	n.running, n.retired = true, true // until Replace
	return n.keeper, &candidate{Seat: n, of: s, present: s.member}, unwanted
}

// A candidate is a seat that is to replace another one, once it has a better connection: keeper.Candidate.
type candidate struct {
	*Seat

	of      *Seat
	present Member // of that seat
}

// TriesOut reports whether a connection of the pool waits for a Call that tries its endpoint, or for its answer.
func (c *candidate) TriesOut() bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.pool.tryout != nil
}

// TryOut has divert choose the seat for the next Call.
func (c *candidate) TryOut(addr string) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.open, c.endpoint = c.made, addr
	c.pool.tryout = cmp.Or(c.pool.tryout, c.Seat)
}

// Withdraw ends the wait for a Call that tries the endpoint, unless one has come.
func (c *candidate) Withdraw() bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if !c.carried {
		c.endTryOut()
	}
	return !c.carried
}

// Replace puts the seat in the place of the other, whose connection ends after its last Call.
func (c *candidate) Replace(addr string) (replaced, unwanted bool) {
	s, n, p := c.of, c.Seat, c.pool
	p.mu.Lock()
	n.endTryOut()
	if unwanted = p.closed || s.retired; unwanted || s.member != c.present || len(n.ended) > 0 {
		n.open = n.made
		n.retire()
		p.mu.Unlock()
		return false, unwanted
	}
	p.seats[slices.Index(p.seats, s)] = n
	n.used, n.retired = s.used, false
	n.setMember(n.made, addr, false)
	s.clearMember() // after setMember, so that the pool always has a connection
	s.retire()
	s.endWhenIdle()
	p.renewNext() // s may be the successor for which the renewal waits, and n stale by now
	ctx, told := p.ctx, p.opts.Connected
	p.mu.Unlock()
	p.kick(Elsewhere)
	p.wg.Go(func() { n.keeper.Resume(ctx, addr) })
	if told != nil {
		told(addr)
	}
	return true, false
}

// endTryOut ends the wait of s for a Call that tries its endpoint. The caller holds pool.mu.
func (s *Seat) endTryOut() {
	if s.pool.tryout == s {
		s.pool.tryout = nil
	}
}
