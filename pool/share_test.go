package pool

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// A crowd is a pool, a server that answers after a while or never, and clients. It runs in a
// bubble, in steps of crowdStep.
type crowd struct {
	t    *testing.T
	p    *Pool
	d    *fakeDialer
	ow   *owner
	out  []sentCall
	late time.Duration // how long the server takes

	clients []*crowdClient
}

const crowdStep = 10 * time.Millisecond

// A sentCall is a Call that the server has.
type sentCall struct {
	m  *fakeMember
	e  *Entry
	at time.Time
}

// A crowdClient always has a Call under way that the server answers, from one of its connections.
type crowdClient struct {
	flow     Flow
	home     int
	answered int
	gone     bool         // it sends nothing more
	slots    map[int]bool // half-seconds in which it was answered
}

func newCrowd(t *testing.T, o Options, grant int) *crowd {
	if o.Share == 0 {
		o.Share = 50
	}
	if o.Loops == 0 {
		o.Loops = 2
	}
	o.QueueWait = 30 * time.Second
	d := &fakeDialer{grant: grant}
	p, ow := newPool(t, o, d)
	return &crowd{t: t, p: p, d: d, ow: ow, late: crowdStep}
}

// hang submits n Calls of f that the server never answers.
func (c *crowd) hang(f *Flow, n, here int) {
	for range n {
		if err := c.p.Submit(&Entry{Flow: f, Cost: 200, Owner: "hangs"}, here); err != nil {
			c.t.Fatal(err)
		}
	}
}

// join adds n healthy clients with depth Calls each.
func (c *crowd) join(n, depth int) {
	for i := range n {
		cl := &crowdClient{flow: Flow{Host: &Host{}}, home: i % 2, slots: map[int]bool{}}
		c.clients = append(c.clients, cl)
		for range depth {
			c.send(cl)
		}
	}
}

func (c *crowd) send(cl *crowdClient) {
	if err := c.p.Submit(&Entry{Flow: &cl.flow, Cost: 200, Owner: cl}, cl.home); err != nil {
		c.t.Fatal(err)
	}
}

// step has the server take what was sent and answer what is due, and the clients send again.
func (c *crowd) step(slot int) {
	now := time.Now()
	for _, m := range c.d.all() {
		for _, e := range m.take() {
			c.out = append(c.out, sentCall{m, e, now})
		}
	}
	out := c.out
	c.out = nil
	for _, s := range out {
		cl, healthy := s.e.Owner.(*crowdClient)
		if !healthy || now.Sub(s.at) < c.late {
			c.out = append(c.out, s)
			continue
		}
		s.e.Answered()
		s.m.seat.Done(s.e, s.m.affinity)
		if cl.answered++; slot >= 0 {
			cl.slots[slot] = true
		}
		if !cl.gone {
			c.send(cl)
		}
	}
	time.Sleep(crowdStep)
	synctest.Wait()
}

// run runs for a time.
func (c *crowd) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c.step(-1)
	}
}

// served runs for n half-seconds and returns in which part of them a client was answered, on
// average over the clients.
func (c *crowd) served(n int) float64 {
	for slot := range n {
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
			c.step(slot)
		}
	}
	slots := 0
	for _, cl := range c.clients {
		slots += len(cl.slots)
	}
	return float64(slots) / float64(n*len(c.clients))
}

// wantServed fails unless the clients are answered in 99 of 100 half-seconds.
func (c *crowd) wantServed(what string) {
	c.t.Helper()
	if got := c.served(20); got < 0.99 {
		st := c.p.Stats()
		c.t.Errorf("%s: healthy clients are answered in %.0f %% of the half-seconds; %d of %d credits in use, %d Calls wait", what, 100*got, st.Outstanding, st.Granted, st.Queued)
	}
}

// end ends the Calls that hang, for Close.
func (c *crowd) end() {
	c.step(-1)
	for _, s := range c.out {
		s.m.seat.Done(s.e, s.m.affinity)
	}
	c.out = nil
}

// TestStuckCalls: Calls that hang, of one host or of many, leave credits to the others: whether
// they came first or last, and whether their hosts were answered before or not.
func TestStuckCalls(t *testing.T) {
	for _, tt := range []struct {
		hosts, calls int // that hang
		grant        int // of four connections
	}{
		{1, 256, 64},
		{1, 256, 4},
		{1, 256, 1},
		{100, 4, 64},
		{100, 4, 32},
		{100, 1, 64},
		{100, 4, 16},
		{400, 4, 64},
		{16, 1, 4},
	} {
		for _, first := range []bool{true, false} {
			name := fmt.Sprintf("%d hosts of %d Calls, %d credits, first %v", tt.hosts, tt.calls, 4*tt.grant, first)
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, Options{Connections: 4}, tt.grant)
				if !first {
					c.join(8, 1)
					c.run(2 * time.Second)
				} else if tt.hosts > 7*tt.grant/2 {
					// Nothing tells so many new hosts from others that are new.
					return
				}
				for i := range tt.hosts {
					c.hang(&Flow{Host: &Host{}}, tt.calls, i%2)
				}
				if first {
					c.run(time.Second)
					c.join(8, 1)
				}
				c.wantServed(name)
				c.end()
			})
		}
	}
}

// TestStuckCallsOfBusyHosts: hosts that were answered until now have Calls that hang, and the
// others go on.
func TestStuckCallsOfBusyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 64)
		c.join(108, 2)
		c.run(time.Second)
		for i, cl := range c.clients[8:] {
			c.hang(&cl.flow, 4, i%2)
		}
		c.clients = c.clients[:8]
		c.wantServed("busy hosts")

		c.end()
	})
}

// TestHalfStuckHost: a host with a few Calls that hang goes on with others, next to another that
// holds all credits it may.
func TestHalfStuckHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 16)
		c.join(8, 1)
		c.run(time.Second)
		c.hang(&Flow{Host: &Host{}}, 256, 0)
		for _, cl := range c.clients {
			c.hang(&cl.flow, 1, 0)
		}
		c.run(4 * time.Second)
		c.wantServed("half stuck")
		c.end()
	})
}

// TestHalfStuckHosts: when one file system hangs that all hosts use, and Calls to it have all credits that hosts may
// have in their turns, the hosts go on with Calls to others.
func TestHalfStuckHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 32)
		c.join(112, 1)
		c.run(time.Second)
		for i, cl := range c.clients {
			c.hang(&cl.flow, 1, i%2)
		}
		c.run(4 * time.Second)
		if n := c.p.old(); n < 110 {
			t.Fatalf("%d Calls hang, want nearly 112", n)
		}
		c.wantServed("half stuck hosts")
		c.end()
	})
}

// TestReserveTurns: while no credits but those of the reserve are left, hosts of which a Call hangs and hosts of which none
// does leave turns to each other, however many of both kinds wait.
func TestReserveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 32)
		c.join(112, 1)
		c.run(time.Second)
		for i, cl := range c.clients {
			c.hang(&cl.flow, 1, i%2)
		}
		c.run(4 * time.Second)
		c.join(32, 1)
		c.run(time.Second) // each of them is answered once
		c.wantServed("all hosts")
		c.end()
	})
}

// TestHangThroughABridge: another bridge is one host, and the first Calls of a hundred of its clients may hang. As nobody
// else wants the credits, it goes on for the next of its clients.
func TestHangThroughABridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 128)
		c.join(1, 0)
		cl := c.clients[0]
		for range 100 {
			c.hang(&Flow{Host: cl.flow.Host}, 2, 0)
		}
		c.run(time.Second)
		c.send(cl)
		c.wantServed("a client of a bridge")
		c.end()
	})
}

// TestSlowForAll: while a server takes long for everybody, its credits are in use.
func TestSlowForAll(t *testing.T) {
	for _, hosts := range []int{1, 3, 40} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 16)
			c.late = 5 * time.Second
			c.join(hosts, min(256, 400/hosts))
			c.run(50 * time.Second)
			least, most := 64, 0
			for range 1000 {
				c.step(-1)
				n := c.p.Stats().Outstanding
				least, most = min(least, n), max(most, n)
			}
			if least < 50 {
				t.Errorf("%d hosts: from %d to %d of 64 credits are in use", hosts, least, most)
			}
			for _, cl := range c.clients {
				if cl.answered == 0 {
					t.Errorf("%d hosts: a client was never answered", hosts)
				}
			}
			c.end()
		})
	}
}

// TestOneHostAlone: a host without neighbours has more than its share soon.
func TestOneHostAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 16)
		c.join(1, 256)
		c.run(5 * time.Second)
		if n := c.p.Stats().Outstanding; n < 56 {
			t.Errorf("%d of 64 credits are in use", n)
		}
		c.end()
	})
}

// TestQuickHosts: hosts whose Calls are answered at once have nearly all credits at once.
func TestQuickHosts(t *testing.T) {
	for _, tt := range []struct{ hosts, least int }{{1, 60}, {3, 56}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 16)
			c.join(tt.hosts, 256)
			c.run(500 * time.Millisecond)
			least := 64
			for range 50 {
				c.step(-1)
				least = min(least, c.p.Stats().Outstanding)
			}
			if least < tt.least {
				t.Errorf("%d hosts: %d of 64 credits are in use", tt.hosts, least)
			}
			c.end()
		})
	}
}

// TestNewcomerBesideLoneHost: a host that had nearly all credits, and whose Calls hang now, leaves
// enough for those that come after it.
func TestNewcomerBesideLoneHost(t *testing.T) {
	for _, grant := range []int{1, 4, 16, 64} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, grant)
			c.join(1, 256)
			c.run(500 * time.Millisecond)
			c.hang(&c.clients[0].flow, 1000, 0)
			c.clients[0].gone = true
			c.run(time.Second)
			c.clients = nil
			c.join(8, 1)
			c.run(time.Second) // at first the eight may share one credit
			c.wantServed(fmt.Sprint(4*grant, " credits"))
			c.end()
		})
	}
}

// TestStuckInSlowStart: Calls that hang right after a start do not keep others out.
func TestStuckInSlowStart(t *testing.T) {
	for _, hosts := range []int{1, 16} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4, SlowStart: slowstart.New(16, 1<<20)}, 64)
			for i := range hosts {
				c.hang(&Flow{Host: &Host{}}, 64/hosts, i%2)
			}
			c.join(8, 1)
			if hosts > 8 {
				c.run(time.Second) // as long as it takes until the Calls are old
			}
			c.wantServed(fmt.Sprint(hosts, " hosts"))
			c.end()
		})
	}
}

// TestHostsShareByHost: a host with a hundred connections gets no more than its neighbour with
// one, on however many loops they are, and weights count between hosts.
func TestHostsShareByHost(t *testing.T) {
	for _, tt := range []struct{ weight, want int }{{1, 1}, {3, 3}} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 8}
			p, _ := newPool(t, Options{Connections: 2, Loops: 2, QueueWait: time.Hour, Share: 50}, d)
			crowd := &Host{}
			flows := []*Flow{{Host: &Host{}, Weight: tt.weight}}
			for range 100 {
				flows = append(flows, &Flow{Host: crowd})
			}
			cost := slices.Repeat([]int{200}, 101)
			depth := slices.Repeat([]int{16}, 101)
			depth[0] = 256
			had := contend(t, p, d, flows, cost, depth, 80<<20)
			var sum, least, most float64
			least = had[1]
			for _, n := range had[1:] {
				sum += n
				least, most = min(least, n), max(most, n)
			}
			if r := had[0] / sum; r < 0.85*float64(tt.want) || r > 1.15*float64(tt.want) {
				t.Errorf("weight %d: the neighbour had %.2f of what 100 connections had, want %d", tt.weight, r, tt.want)
			}
			if least < 0.6*most {
				t.Errorf("the connections of one host had from %.0f to %.0f octets", least, most)
			}
		})
	}
}

// TestSetAsideBesideBusy: a host that was set aside has its turns again when there is room in its window, also while
// others always wait for theirs.
func TestSetAsideBesideBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 16)
		one, other := &Flow{Host: &Host{}}, &Flow{Host: &Host{}}
		c.hang(other, 100, 1)
		c.hang(one, 100, 0)
		c.run(20 * time.Second)
		if !one.Host.aside.In() || !other.Host.aside.In() {
			t.Fatal("a host whose Calls hang has room in its window")
		}
		c.join(8, 64)
		c.run(time.Second)
		c.p.Forget(other, errLost)
		for _, s := range c.out { // the other host's Calls end
			if s.e.Flow == other {
				s.m.seat.Done(s.e, s.m.affinity)
			}
		}
		c.out = slices.DeleteFunc(c.out, func(s sentCall) bool { return s.e.Flow == other })
		held := one.Host.held
		c.run(3 * time.Second)
		if one.Host.held <= held {
			t.Errorf("a host has %d credits, as before others gave back theirs: %+v", held, c.p.room())
		}
		c.end()
	})
}

// TestHangOnReplaced: Calls that hang on connections which others have replaced do not keep their host from the credits
// of these.
func TestHangOnReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 32)
		f := &Flow{Host: &Host{}}
		for range 8 {
			c.hang(f, 200, 0)
			c.run(20 * time.Second)
			c.p.Forget(f, errLost)
			for _, m := range c.d.all() {
				m.seat.Retire(m)
			}
			c.run(5 * time.Second)
		}
		if e := submit(t, c.p, f, 200, 0); e.Seat() == nil {
			t.Errorf("a Call waits beside %d free credits", c.p.free)
		}
		c.end()
	})
}

// TestShareExpires: the Calls of hosts that were set aside come back when they have waited too long,
// those of hosts included that hold no credit.
func TestShareExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 1}, 32)
		synctest.Wait()
		for range 60 {
			c.hang(&Flow{Host: &Host{}}, 1, 0)
		}
		c.p.mu.Lock()
		waiting := c.p.queue.n
		c.p.mu.Unlock()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if es, _ := c.ow.list(); waiting == 0 || len(es) != waiting {
			t.Errorf("%d Calls came back after they had waited too long, want %d", len(es), waiting)
		}
	})
}

// TestShareLifted: when a reload lets a host have all credits, its Calls that wait get them at once.
func TestShareLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 2}, 16)
		var f Flow
		c.hang(&f, 32, 0)
		c.run(10 * time.Second)
		before := c.p.Stats()
		if before.Queued == 0 || before.Outstanding >= before.Granted {
			t.Fatalf("%d Calls wait, %d of %d credits are in use", before.Queued, before.Outstanding, before.Granted)
		}
		o := c.p.options()
		o.Share = 100
		c.p.Update(o, false)
		if st := c.p.Stats(); st.Queued > 0 {
			t.Errorf("%d Calls wait beside %d free credits", st.Queued, st.Granted-st.Outstanding)
		}
		c.end()
	})
}

// TestSilentHost: a host of which one Call hangs and that sends nothing for half a minute goes on afterwards, while
// others have all the unproven Calls that they may have.
func TestSilentHost(t *testing.T) {
	for hogs := range 4 {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 32)
			c.join(1+hogs, 1)
			silent := c.clients[0]
			c.run(time.Second)
			for _, cl := range c.clients {
				cl.gone = true
			}
			c.run(time.Second)
			for _, hog := range c.clients[1:] {
				c.hang(&hog.flow, 200, 0)
			}
			c.clients = c.clients[:1]
			c.hang(&silent.flow, 1, 0)
			c.run(30 * time.Second)
			silent.gone = false
			c.send(silent)
			c.run(3 * time.Second)
			c.wantServed(fmt.Sprintf("beside %d hosts whose Calls hang", hogs))
			c.end()
		})
	}
}

// TestNewClientOfABridge: a host whose Calls hang, as many as another bridge lets one of its clients have, goes on with a
// few others, which wait behind none.
func TestNewClientOfABridge(t *testing.T) {
	for _, grant := range []int{8, 16, 32, 256} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, grant)
			var bridge Host
			c.clients = []*crowdClient{{flow: Flow{Host: &bridge}, slots: map[int]bool{}}}
			for range 4 * grant {
				c.send(c.clients[0])
			}
			c.run(time.Second)
			c.clients[0].gone = true
			c.run(time.Second)
			hangs := &Flow{Host: &bridge}
			c.hang(hangs, 8*grant, 0)
			c.run(5 * time.Second)
			c.p.Forget(hangs, errors.New("they wait in the other bridge"))
			c.clients = nil
			for range 4 {
				c.clients = append(c.clients, &crowdClient{flow: Flow{Host: &bridge}, slots: map[int]bool{}})
				c.send(c.clients[len(c.clients)-1])
			}
			c.run(3 * time.Second)
			c.wantServed(fmt.Sprintf("%d credits", 4*grant))
			c.end()
		})
	}
}

// TestResendsOfABridge: a host whose Calls hang, and which now and then sends one more that hangs, as another bridge does
// when a Call was not answered in time, goes on with the Calls that are answered.
func TestResendsOfABridge(t *testing.T) {
	for _, grant := range []int{32, 256} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, grant)
			var bridge Host
			healthy := &crowdClient{flow: Flow{Host: &bridge}, slots: map[int]bool{}}
			c.clients = []*crowdClient{healthy}
			hangs := &Flow{Host: &bridge}
			c.send(healthy)
			c.run(time.Second)
			c.hang(hangs, 2*grant, 0)
			for range 8 {
				c.run(500 * time.Millisecond)
				c.hang(&Flow{Host: &bridge}, 1, 0)
			}
			c.wantServed(fmt.Sprintf("%d credits", 4*grant))
			c.end()
		})
	}
}

// TestReserveAfterReplaced: a host whose last Call comes back from a connection that another has replaced has its next
// one at once, from the reserve.
func TestReserveAfterReplaced(t *testing.T) {
	for _, batched := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 8)
			c.join(8, 2)
			c.run(time.Second)
			c.late = time.Hour
			f := &Flow{Host: &Host{}}
			e := submit(t, c.p, f, 200, 0)
			s := e.Seat()
			s.Retire(s.open)
			synctest.Wait()
			for _, cl := range c.clients {
				c.hang(&cl.flow, 8, cl.home)
			}
			next := submit(t, c.p, f, 200, 0)
			if next.Seat() != nil {
				t.Fatal("a host has a credit of the reserve beside another")
			}
			s.open.(*fakeMember).drop(e)
			e.Answered()
			if batched {
				b := NewBatch(0, func() {}, nil)
				b.Done(e)
				b.Flush(false)
			} else {
				s.Done(e, 0)
			}
			if next.Seat() == nil {
				t.Errorf("a Call waits beside a reserve of which %d credits are free", c.p.free)
			}
			c.end()
		})
	}
}

// TestDebtIsForgiven: a host that had only credits of the reserve for long goes on with the others when there are turns
// again.
func TestDebtIsForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 4}, 32)
		c.join(1, 64)
		c.join(8, 1)
		c.run(time.Second)
		for i := range 120 {
			c.hang(&Flow{Host: &Host{}}, 1, i%2)
		}
		c.run(time.Minute)
		for _, cl := range c.clients[1:] {
			for range 63 {
				c.send(cl)
			}
		}
		out := c.out
		c.out = slices.DeleteFunc(slices.Clone(out), func(s sentCall) bool { return s.e.Owner == "hangs" })
		for _, s := range out {
			if s.e.Owner == "hangs" {
				s.m.seat.Done(s.e, s.m.affinity)
			}
		}
		c.clients = c.clients[:1]
		c.wantServed("after a time without turns")
		c.end()
	})
}

// TestFirstCallHangs: hosts whose very first Call hangs go on with others, although the Calls of many do.
func TestFirstCallHangs(t *testing.T) {
	for _, hosts := range []int{8, 40, 55} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 32)
			for range hosts {
				f := &Flow{Host: &Host{}}
				c.hang(f, 1, 0)
				c.clients = append(c.clients, &crowdClient{flow: Flow{Host: f.Host}, slots: map[int]bool{}})
			}
			c.run(100 * time.Millisecond)
			for _, cl := range c.clients {
				c.send(cl)
			}
			c.run(4 * time.Second)
			c.wantServed("hosts whose first Call hangs")
			c.end()
		})
	}
}

// TestReplacedBesideBusy: Calls that hang on connections which others have replaced do not keep their host from its turns.
func TestReplacedBesideBusy(t *testing.T) {
	for _, depth := range []int{2, 64} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, Options{Connections: 4}, 32)
			one := &Host{}
			for range 8 {
				f := &Flow{Host: one}
				c.hang(f, 200, 0)
				c.run(3 * time.Second)
				c.p.Forget(f, errLost)
				for _, m := range c.d.all() {
					m.seat.Retire(m)
				}
				c.run(time.Second)
			}
			c.join(4, depth)
			c.run(time.Second)
			c.clients = append([]*crowdClient{{flow: Flow{Host: one}, slots: map[int]bool{}}}, c.clients...)
			for range 8 {
				c.send(c.clients[0])
			}
			c.run(2 * time.Second)
			c.wantServed("after replacement")
			c.end()
		})
	}
}
