package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/quota"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// A chaos is a pool to which anything happens in random order: Calls, Replies, lost connections, reloads.
type chaos struct {
	t     *testing.T
	rng   *rand.Rand
	o     Options
	p     *Pool
	d     *fakeDialer
	ow    *owner
	flows []*Flow
	batch *Batch
	calls map[*Entry]bool // that have not ended
	out   []sentCall      // that the server has
	steps []string        // what happened
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 0)), ow: &owner{}, calls: map[*Entry]bool{}}
	c.o = complete(Options{Share: 50, Loops: 2, Connections: 1 + c.rng.IntN(4), QueueWait: time.Hour, Idle: time.Hour})
	if c.rng.IntN(3) == 0 {
		c.o.SlowStart = slowstart.New(16, 1<<40)
	}
	if c.rng.IntN(8) == 0 {
		q := quota.New(2)
		q.Set(8, true)
		c.o.Quota = q.Host()
	}
	c.d = &fakeDialer{grant: 1 + c.rng.IntN(24)}
	c.p = idlePool(t, c.o, c.d, c.ow)
	c.p.Need(c.o.Connections)
	c.p.Start()
	synctest.Wait()
	c.batch = NewBatch(0, func() {}, nil)
	for range 1 + c.rng.IntN(24) {
		h := &Host{}
		for range 1 + c.rng.IntN(3) {
			f := &Flow{Host: h, Weight: c.rng.IntN(3), Sticky: c.rng.IntN(3) == 0, Hash: c.rng.Uint32()}
			c.flows = append(c.flows, f)
		}
	}
	return c
}

// step does one thing, or several.
func (c *chaos) step() {
	p, rng := c.p, c.rng
	flow := c.flows[rng.IntN(len(c.flows))]
	what := ""
	switch n := rng.IntN(100); {
	case n < 30:
		k := 1 + rng.IntN(12)
		what = fmt.Sprintf("submit %d", k)
		for range k {
			e := &Entry{Flow: flow, Cost: 200, Aside: rng.IntN(20) == 0}
			if rng.IntN(6) == 0 {
				e.Cost = largeCost
			}
			if c.calls[e] = true; rng.IntN(3) == 0 {
				c.batch.Submit(p, e)
			} else if err := p.Submit(e, rng.IntN(3)-1); err != nil {
				delete(c.calls, e)
			}
		}
	case n < 68:
		k := rng.IntN(16)
		what = fmt.Sprintf("answer %d", k)
		c.end(k)
	case n < 86:
		d := time.Duration(rng.IntN(300)) * time.Millisecond
		if rng.IntN(4) == 0 {
			d *= 8
		}
		what = "sleep"
		time.Sleep(d)
	case n < 88:
		what = "lost"
		if ms := c.d.all(); len(ms) > 0 {
			m := ms[rng.IntN(len(ms))]
			c.lose(m)
		}
	case n < 90:
		what = "retire"
		if ms := c.d.all(); len(ms) > 0 {
			m := ms[rng.IntN(len(ms))]
			m.seat.Retire(m)
		}
	case n < 93:
		what = "grant"
		if ms := c.d.all(); len(ms) > 0 {
			m := ms[rng.IntN(len(ms))]
			m.mu.Lock()
			over := m.ended
			m.mu.Unlock()
			if !over {
				m.seat.Granted(1+rng.IntN(32), 0)
			}
		}
	case n < 95:
		c.o.Share = []int{0, 20, 50, 90, 100}[rng.IntN(5)]
		c.o.Connections = 1 + rng.IntN(4)
		what = fmt.Sprintf("update %d %d", c.o.Share, c.o.Connections)
		p.Update(c.o, rng.IntN(3) == 0)
		p.Need(c.o.Connections)
	case n < 96:
		what = "forget"
		c.batch.Forget(p, flow, errLost)
	case n < 97:
		what = "reweigh"
		p.Reweigh(flow, 1+rng.IntN(4))
	case n < 98:
		what = "hold"
		if p.Hold() {
			time.Sleep(10 * time.Millisecond)
			p.Resume(0)
		}
	default:
		what = "steer or borrow"
		c.fetch()
		if len(c.out) == 0 {
			break
		}
		s := c.out[rng.IntN(len(c.out))]
		if rng.IntN(2) == 0 {
			e := &Entry{Cost: 200}
			if s.m.seat.Borrow(s.m, e) {
				c.calls[e] = true
				c.out = append(c.out, sentCall{m: s.m, e: e})
			}
			break
		}
		if s.e.Flow != nil && s.m.seat.Steer(s.e, 0) {
			c.out = slices.DeleteFunc(c.out, func(o sentCall) bool { return o.e == s.e })
		}
	}
	if rng.IntN(2) == 0 {
		c.batch.Flush(false)
	}
	synctest.Wait()
	c.steps = append(c.steps, what)
	c.gaveBack()
	c.check()
}

// fetch has the server take what was sent.
func (c *chaos) fetch() {
	for _, m := range c.d.all() {
		for _, e := range m.take() {
			e.Sent()
			c.out = append(c.out, sentCall{m: m, e: e})
		}
	}
}

// end has the server answer n Calls. Some of them come back without an answer, and are sent again.
func (c *chaos) end(n int) {
	c.fetch()
	c.rng.Shuffle(len(c.out), func(i, j int) { c.out[i], c.out[j] = c.out[j], c.out[i] })
	n = min(n, len(c.out))
	now := c.out[:n]
	c.out = slices.Clone(c.out[n:])
	for _, s := range now {
		again := s.e.Flow != nil && c.rng.IntN(10) == 0
		if !again {
			s.e.Answered()
			delete(c.calls, s.e)
		}
		if c.o.SlowStart != nil {
			c.o.SlowStart.Answered(0, 0, Elsewhere)
		}
		if c.rng.IntN(3) == 0 && !again {
			c.batch.Done(s.e)
			continue
		}
		s.m.seat.Done(s.e, s.m.affinity)
		if again {
			if c.p.Requeue(s.e, s.m.affinity) != nil {
				delete(c.calls, s.e)
			}
		}
	}
}

// lose ends m, whose Calls are sent again.
func (c *chaos) lose(m *fakeMember) {
	c.batch.Flush(false) // or credits of m come back after its end
	c.fetch()
	m.seat.Closing(m)
	var again []*Entry
	c.out = slices.DeleteFunc(c.out, func(s sentCall) bool {
		if s.m != m {
			return false
		}
		if m.seat.Done(s.e, m.affinity); s.e.Flow == nil {
			delete(c.calls, s.e)
		} else {
			again = append(again, s.e)
		}
		return true
	})
	again = append(again, m.end(errLost)...)
	for _, e := range again {
		if c.p.Requeue(e, m.affinity) != nil {
			delete(c.calls, e)
		}
	}
}

// gaveBack forgets the Calls that the pool gave back.
func (c *chaos) gaveBack() {
	c.ow.mu.Lock()
	defer c.ow.mu.Unlock()
	for _, e := range c.ow.expired {
		delete(c.calls, e)
	}
	c.ow.expired, c.ow.errs = nil, nil
}

// check looks at everything that must hold between two steps.
func (c *chaos) check() {
	c.t.Helper()
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	fail := func(format string, args ...any) {
		c.t.Helper()
		c.t.Fatalf("after %q: %s", c.steps[max(0, len(c.steps)-6):], fmt.Sprintf(format, args...))
	}
	seen := map[*Host]bool{}
	unproven, held, waiting, calls, aside := 0, 0, 0, 0, 0
	for _, f := range c.flows {
		h := f.Host
		if seen[h] {
			continue
		}
		seen[h] = true
		was := h.unproven
		if p.assess(h); h.unproven != was {
			fail("a host has %d unproven Calls, and the pool counts %d", h.unproven, was)
		}
		unproven += int(h.unproven)
		held += int(h.held)
		if h.held < 0 || h.waiting < 0 || h.rings < 0 {
			fail("a count of a host is below 0: %+v", *h)
		}
		if (h.holder > 0) != (h.held > 0) || h.holder > 0 && p.holders[h.holder-1] != h {
			fail("a host that holds %d credits is %d in holders", h.held, h.holder)
		}
		if h.aside.In() {
			if aside++; h.waiting == 0 {
				fail("a host without Calls is set aside")
			}
		}
		n, rings := int32(0), int32(0)
		for pl := h.places; pl != nil; pl = pl.another {
			in := 0
			for f := range pl.flows.All {
				in += length(f.waiting[0].head) + length(f.waiting[1].head)
			}
			if in != pl.n {
				fail("a place has %d Calls, and counts %d", in, pl.n)
			}
			calls += in
			if pl.n > 0 {
				n++
			}
			if pl.turn.In() {
				rings++
			}
			if pl.turn.In() != (pl.n > 0 && !h.aside.In()) {
				fail("a place with %d Calls is in the ring: %v; aside: %v", pl.n, pl.turn.In(), h.aside.In())
			}
			may := pl.n > 0 && h.ages.Young(p.age) == 0 && (h.held == 0 || p.lately(h))
			if may && pl.list == nil {
				fail("a place that may have a credit of the reserve is in no list: held %d", h.held)
			}
			if pl.list != nil && (pl.n == 0 || h.ages.Young(p.age) > 0) {
				fail("a place that may have no credit of the reserve is in a list")
			}
			if pl.list == &pl.queue.stuck && h.held == 0 {
				fail("a host that holds no credit is listed as one whose Calls are old")
			}
		}
		if n != h.waiting || rings != h.rings {
			fail("a host waits in %d places, and in %d rings, and counts %d and %d", n, rings, h.waiting, h.rings)
		}
		if n > 0 {
			waiting++
		}
	}
	if unproven != p.unproven || waiting != p.hosts || calls != p.queue.n {
		fail("%d unproven Calls, %d hosts that wait, %d Calls that wait; the pool counts %d, %d, %d",
			unproven, waiting, calls, p.unproven, p.hosts, p.queue.n)
	}
	for range p.aside.All {
		aside--
	}
	if aside != 0 {
		fail("%d more hosts say that they are set aside than the pool has set aside", aside)
	}
	credits, inUse, free := 0, 0, 0
	for _, s := range p.seats {
		if s.member != nil {
			credits, inUse, free = credits+s.grant, inUse+s.inUse, free+max(s.grant-s.inUse, 0)
		}
	}
	if credits != p.credits || inUse != p.inUse || free != p.free {
		fail("%d credits, %d in use, %d free; the pool counts %d, %d, %d", credits, inUse, free, p.credits, p.inUse, p.free)
	}
}

// live fails if a Call waits that may have a credit, and not even a sweep has given it one.
func (c *chaos) live() {
	c.t.Helper()
	c.batch.Flush(false)
	time.Sleep(1200 * time.Millisecond) // a sweep passes
	synctest.Wait()
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.room()
	if p.part != nil || r.free <= r.reserve {
		return
	}
	for _, f := range p.queue.waiting() {
		s := p.pick(0, Elsewhere, false)
		if i := slices.Index(p.queue.bySeat, f.place.queue); i >= 0 {
			if s = nil; i < len(p.seats) {
				s = p.seats[i]
			}
		}
		if s != nil && s.free() > 0 && p.within(f.Host, r) {
			c.t.Fatalf("after %q: a Call waits, and nothing keeps it: %+v, host %+v", c.steps[max(0, len(c.steps)-8):], r, *f.Host)
		}
	}
}

// finish has the server answer everything, and fails if a Call does not end.
func (c *chaos) finish() {
	for range 4000 {
		c.batch.Flush(false)
		c.end(1 << 20)
		c.batch.Flush(false)
		synctest.Wait()
		c.gaveBack()
		c.steps = append(c.steps, "answer all")
		c.check()
		if len(c.calls) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(c.calls) > 0 || p.queue.n > 0 || p.outstanding > 0 || p.unproven > 0 || len(p.holders)+p.hosts > 0 || !p.aside.Empty() {
		c.t.Fatalf("%d Calls have not ended: %+v", len(c.calls), p.shared)
	}
	for _, f := range c.flows {
		if !f.Host.idle() {
			c.t.Fatal("a host without a Call is not idle")
		}
	}
}

// TestRandom: whatever happens, the counters are those of the Calls, no Call waits beside a credit that it may have, and
// all Calls end.
func TestRandom(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 20
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newChaos(t, seed)
				t.Cleanup(c.p.Close)
				for i := range 400 {
					if c.step(); i%40 == 39 {
						c.live()
					}
				}
				c.finish()
			})
		})
	}
}
