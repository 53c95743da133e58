package pool

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

var (
	errGone = errors.New("the host is gone")
	errDown = errors.New("refused")
)

// A slowDialer dials like city, takes a while, and counts its attempts under way.
type slowDialer struct {
	city      *cityDialer
	takes     time.Duration // how long
	now, most atomic.Int32
}

func (d *slowDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	if n := d.now.Add(1); n > d.most.Load() {
		d.most.Store(n)
	}
	defer d.now.Add(-1)
	time.Sleep(d.takes)
	return d.city.Dial(ctx, endpoint, affinity, s)
}

// A cityDialer dials endpoints that can be down.
type cityDialer struct {
	mu    sync.Mutex
	down  map[string]bool
	mute  map[string]bool // accepts connections and answers nothing
	shut  map[string]bool // accepts connections and ends them
	up    map[*fakeMember]string
	dials map[string]int
}

func (d *cityDialer) Dial(_ context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials[endpoint]++
	if d.down[endpoint] {
		return nil, errDown
	}
	m := &fakeMember{seat: s, affinity: affinity}
	switch {
	case d.shut[endpoint]:
		go m.end(io.EOF)
	case !d.mute[endpoint]:
		s.Granted(8, Elsewhere)
	}
	d.up[m] = endpoint
	return m, nil
}

// lose takes an endpoint down and ends its connections with err.
func (d *cityDialer) lose(endpoint string, err error) {
	d.mu.Lock()
	d.down[endpoint] = true
	var lost []*fakeMember
	for m, at := range d.up {
		if at == endpoint {
			lost = append(lost, m)
			delete(d.up, m)
		}
	}
	d.mu.Unlock()
	for _, m := range lost {
		m.end(err)
	}
}

func (d *cityDialer) set(endpoint string, down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down[endpoint] = down
}

// setMute stops or starts the server at endpoint, which accepts connections meanwhile.
func (d *cityDialer) setMute(endpoint string, mute bool) {
	d.mu.Lock()
	d.mute[endpoint] = mute
	var heard []*fakeMember
	for m, at := range d.up {
		if at == endpoint && !mute {
			heard = append(heard, m)
		}
	}
	d.mu.Unlock()
	for _, m := range heard {
		m.seat.Granted(8, Elsewhere)
	}
}

// all returns the connections that were made and not lost.
func (d *cityDialer) all() []*fakeMember {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.up))
}

func (d *cityDialer) count(endpoint string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials[endpoint]
}

func newCityDialer() *cityDialer {
	return &cityDialer{down: make(map[string]bool), mute: make(map[string]bool), shut: make(map[string]bool), up: make(map[*fakeMember]string), dials: make(map[string]int)}
}

// connections returns how many connections to endpoint were made and not closed.
func (d *cityDialer) connections(endpoint string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for m, at := range d.up {
		if at == endpoint && m.isOpen() {
			n++
		}
	}
	return n
}

// cityAt starts a pool of d with o, which names the endpoints, and returns it with its settings.
func cityAt(t *testing.T, d Dialer, o Options, priority bool) (*Pool, Options) {
	t.Helper()
	o.Health = &endpoints.Health{}
	o = complete(o)
	o.Health.Set(o.Endpoints, priority)
	return startPool(t, o, d, &owner{}), o
}

func cityPool(t *testing.T, o Options, priority bool, down ...string) (*Pool, *cityDialer) {
	t.Helper()
	d := newCityDialer()
	for _, e := range down {
		d.down[e] = true
	}
	o.Endpoints = []string{"a", "b", "c"}
	if o.Health == nil {
		o.Health = &endpoints.Health{}
	}
	o.Health.Set(o.Endpoints, priority)
	o.HostGone = func(err error) bool { return errors.Is(err, errGone) }
	return startPool(t, o, d, &owner{}), d
}

// at returns the endpoints of the connections of p that take Calls, or will when the server answers, in order.
func at(p *Pool) (list []string) {
	for _, s := range p.Stats().Connections {
		if s.Up || s.Mute {
			list = append(list, s.Endpoint)
		}
	}
	slices.Sort(list)
	return list
}

func wantAt(t *testing.T, p *Pool, why string, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := at(p); !slices.Equal(got, want) {
		t.Errorf("%s: connections to %v, want %v", why, got, want)
	}
}

// TestSpread: connections are spread over all endpoints. While an endpoint is down, its
// connections are to the others, and each returns after its last Call when it is back.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		h := &endpoints.Health{
			Ejected:  func(e string, _ time.Duration, _ error) { events = append(events, "-"+e) },
			Returned: func(e string) { events = append(events, "+"+e) },
		}
		p, d := cityPool(t, Options{Connections: 3, Health: h}, false)
		wantAt(t, p, "the start", "a", "b", "c")
		d.lose("b", errGone)
		time.Sleep(200 * time.Millisecond)
		if got := at(p); len(got) != 3 || slices.Contains(got, "b") {
			t.Errorf("b's host is gone: connections to %v", got)
		}
		d.set("b", false)
		time.Sleep(5 * time.Second)
		wantAt(t, p, "b is back", "a", "b", "c")
		if !slices.Equal(events, []string{"-b", "+b"}) {
			t.Errorf("told of %v", events)
		}
	})
}

// TestPriority: all connections are to the first endpoint that can be connected to.
func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		discarded := 0
		p, d := cityPool(t, Options{Connections: 2, Discarded: func(*Seat) { discarded++ }}, true)
		wantAt(t, p, "the start", "a", "a")
		d.lose("a", errGone)
		time.Sleep(200 * time.Millisecond)
		wantAt(t, p, "a is gone", "b", "b")

		// The pool tries it again, less and less often.
		before := d.count("a")
		time.Sleep(10 * time.Minute)
		if n := d.count("a") - before; n < 8 || n > 30 {
			t.Errorf("%d attempts in 10 minutes at an endpoint that is down", n)
		}
		wantAt(t, p, "a is away", "b", "b")
		if n := d.count("a") - before; discarded != n {
			t.Errorf("Discarded was called for %d seats after %d attempts", discarded, n)
		}

		// It comes back, and a connection with a Call is replaced after that Call.
		var busy *fakeMember
		d.mu.Lock()
		for m := range d.up {
			busy = m
		}
		d.mu.Unlock()
		var f Flow
		e := &Entry{Flow: &f, Cost: 100}
		busy.seat.Borrow(busy, e)
		d.set("a", false)
		time.Sleep(3 * time.Minute)
		wantAt(t, p, "a is back", "a", "a")
		if busy.closed != nil {
			t.Error("a connection was closed under its Call")
		}
		busy.seat.Done(e, 0)
		synctest.Wait()
		if !errors.Is(busy.closed, errRetired) {
			t.Errorf("after its last Call it was closed with %v", busy.closed)
		}
		synctest.Wait()
		if n := p.Stats().Retired; n != 0 {
			t.Errorf("%d retired connections are left", n)
		}
	})
}

// TestKeepEndpoint: with KeepEndpoint a connection returns to the endpoint that it had,
// while that can be connected to.
func TestKeepEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 1, KeepEndpoint: true, Prefer: 1}, false, "b")
		time.Sleep(time.Second)
		wantAt(t, p, "b is away", "c")
		d.set("b", false)
		time.Sleep(5 * time.Minute)
		wantAt(t, p, "b is back", "c")
		d.lose("c", errors.New("reset")) // which is down for a moment
		d.set("c", false)
		time.Sleep(time.Second)
		wantAt(t, p, "c has lost the connection", "c")
		d.lose("c", errGone)
		time.Sleep(time.Second)
		if got := at(p); len(got) != 1 || got[0] == "c" {
			t.Errorf("c is gone: connections to %v", got)
		}
	})
}

// TestReturnWaits: an attempt to return to an endpoint does not count as one before the limit of attempts admits it.
func TestReturnWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := dials.New(1, 50)
		d := newCityDialer()
		d.down["a"] = true
		p, o := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a", "b"}, Dials: l.Share()}, false)
		time.Sleep(5 * time.Second)
		wantAt(t, p, "a is down", "b")
		other := l.Share()
		if err := other.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		d.set("a", false)
		if _, waiting := l.Stats(); waiting != 1 {
			t.Fatalf("%d attempts wait, want 1", waiting)
		}
		if !o.Health.IsBetter(0, "b") {
			t.Error("an attempt counts that has not begun")
		}
		other.Release()
		time.Sleep(time.Second)
		wantAt(t, p, "a is back", "a")
	})
}

// TestKeepAnswered: a connection does not keep to an endpoint whose server has never answered on it.
func TestKeepAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCityDialer()
		d.down["a"], d.mute["b"] = true, true
		p, _ := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a", "b"}, KeepEndpoint: true}, false)
		time.Sleep(2 * time.Second)
		wantAt(t, p, "a is down", "b")
		if n := p.seats[0].keeper.Prefers(); n != 0 {
			t.Errorf("the connection keeps to endpoint %d, which answers nothing", n)
		}
		d.setMute("b", false)
		synctest.Wait()
		if n := p.seats[0].keeper.Prefers(); n != 1 {
			t.Errorf("b answers, and the connection prefers endpoint %d", n)
		}
	})
}

// TestAllAway: while all endpoints are down the pool tries all of them, and it connects to
// the first one that is back.
func TestAllAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 1}, false, "a", "b", "c")
		time.Sleep(5 * time.Minute)
		for _, e := range []string{"a", "b", "c"} {
			if d.count(e) < 5 {
				t.Errorf("%s was tried %d times in 5 minutes", e, d.count(e))
			}
		}
		d.set("c", false)
		// The pool dials the endpoint whose ejection ends first, each of which lasts for time.Minute/2 at least and time.Minute
		// at most. So when time.Minute/2 has passed since it dialled c, it dials each other one once more before c.
		time.Sleep(time.Minute/2 + 3*p.options().BackoffMax)
		wantAt(t, p, "c is back", "c")
	})
}

// A hangDialer gets no answer from some endpoints.
type hangDialer struct {
	*cityDialer
	hang map[string]bool
}

func (d *hangDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	if d.hang[endpoint] {
		d.mu.Lock()
		d.dials[endpoint]++
		d.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.cityDialer.Dial(ctx, endpoint, affinity, s)
}

// TestTrialGivenUp: an endpoint is tried again when the pool that was trying it has been
// closed.
func TestTrialGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &hangDialer{newCityDialer(), map[string]bool{"a": true}}
		h := &endpoints.Health{}
		h.Set([]string{"a", "b"}, false)
		h.Gone("a", errGone) // its host has gone
		time.Sleep(2 * time.Second)
		o := Options{Endpoints: []string{"a", "b"}, Connections: 1, Health: h, Prefer: 0}
		pinned := idlePool(t, Options{Endpoints: o.Endpoints, Connections: 1, Health: h, Prefer: 0, KeepEndpoint: true}, d, &owner{})
		pinned.Start()
		synctest.Wait() // for the attempt at a, which is ejected
		if d.count("a") != 1 {
			t.Fatal("a is not tried")
		}
		pinned.Close() // because its client has gone
		d.hang["a"] = false
		shared := idlePool(t, o, d, &owner{})
		shared.Start()
		defer shared.Close()
		time.Sleep(time.Hour)
		synctest.Wait()
		if out, _ := h.Counts(); out != 0 {
			t.Errorf("a is well for an hour, and %d endpoints are ejected; it was tried %d times in all", out, d.count("a"))
		}
		wantAt(t, shared, "an hour later", "a")
	})
}

// TestOneHangs: while an attempt to connect to an endpoint hangs, the other connections are made to
// another endpoint after a second, and the one that hangs after Options.DialTimeout.
func TestOneHangs(t *testing.T) {
	for _, priority := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &hangDialer{newCityDialer(), map[string]bool{}}
			p, o := cityAt(t, d, Options{Connections: 4, Endpoints: []string{"a", "b"}}, priority)
			if priority {
				wantAt(t, p, "both work", "a", "a", "a", "a")
			} else {
				wantAt(t, p, "both work", "a", "a", "b", "b")
			}
			d.hang["a"] = true
			d.lose("a", errLost)
			time.Sleep(2 * time.Second)
			wantAt(t, p, "an attempt at a hangs", "b", "b", "b")
			time.Sleep(o.DialTimeout)
			wantAt(t, p, "the attempt has failed", "b", "b", "b", "b")
		})
	}
}

// TestOneHangsForKeepers: a pool that keeps to its endpoint gives it as long as if there were no other.
func TestOneHangsForKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &hangDialer{newCityDialer(), map[string]bool{}}
		p, o := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a", "b"}, KeepEndpoint: true}, false)
		wantAt(t, p, "both work", "a")
		d.hang["a"] = true
		d.lose("a", errLost)
		time.Sleep(2 * o.DialTimeout)
		wantAt(t, p, "an attempt at a hangs")
		time.Sleep(2 * o.DialTimeout)
		wantAt(t, p, "the attempt has failed", "b")
	})
}

// TestOneIsSlow: connections are spread over both endpoints although the first one at each takes half a
// second, while the others wait for it.
func TestOneIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDialer{city: newCityDialer(), takes: endpoints.Patience / 2}
		p, _ := cityAt(t, d, Options{Connections: 4, Endpoints: []string{"a", "b"}}, false)
		time.Sleep(2 * time.Second)
		wantAt(t, p, "both work", "a", "a", "b", "b")
		if a, b := d.city.count("a"), d.city.count("b"); a != 2 || b != 2 {
			t.Errorf("%d and %d attempts, want 2 and 2", a, b)
		}
	})
}

// TestDownOneAtATime: while there is no connection to an endpoint, one attempt at a time tries
// it, and when that succeeds all connections are made at once.
func TestDownOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDialer{city: newCityDialer(), takes: time.Second}
		d.city.down["a"] = true
		h := &endpoints.Health{}
		h.Set([]string{"a"}, false)
		o := Options{Endpoints: []string{"a"}, Connections: 8, Health: h}
		p := startPool(t, o, d, &owner{})
		pinned := startPool(t, Options{Endpoints: []string{"a"}, Connections: 1, Health: h, KeepEndpoint: true}, d, &owner{})
		time.Sleep(time.Minute)
		if n := d.most.Load(); n != 1 || d.city.count("a") < 10 {
			t.Errorf("%d attempts at once, want 1, and %d in a minute", n, d.city.count("a"))
		}
		d.city.set("a", false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if a, b := p.Stats().Usable, pinned.Stats().Usable; a != 8 || b != 1 {
			t.Errorf("%d and %d connections, want 8 and 1", a, b)
		}
		if n := d.most.Load(); n < 2 {
			t.Errorf("%d attempts at once at an endpoint that is up", n)
		}
	})
}

// TestLocalErrors: an attempt that fails for want of descriptors says nothing about its endpoint.
func TestLocalErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &endpoints.Health{Ejected: func(string, time.Duration, error) { t.Error("an endpoint was ejected") }}
		local := func(err error) bool { return errors.Is(err, errDown) }
		p, d := cityPool(t, Options{Connections: 3, Health: h, Local: local}, false, "a", "b", "c")
		time.Sleep(time.Minute)
		for _, e := range []string{"a", "b", "c"} {
			d.set(e, false)
		}
		time.Sleep(time.Minute)
		wantAt(t, p, "with descriptors again", "a", "b", "c")
	})
}

// An endpoint that stays down is ejected once, however often it is tried; what follows is the same
// ejection, and only a connection ends it.
func TestEjectedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ejected, returned atomic.Int32
		h := &endpoints.Health{
			Ejected:  func(string, time.Duration, error) { ejected.Add(1) },
			Returned: func(string) { returned.Add(1) },
		}
		p, d := cityPool(t, Options{Connections: 6, Health: h, BackoffMin: 100 * time.Millisecond, BackoffMax: 5 * time.Second}, false, "a", "b", "c")
		time.Sleep(66 * time.Second)
		synctest.Wait()
		if n := ejected.Load(); n != 3 {
			t.Errorf("three endpoints that are down were ejected %d times, want 3", n)
		}
		for _, e := range []string{"a", "b", "c"} {
			d.set(e, false)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := returned.Load(); n != 3 {
			t.Errorf("three endpoints returned %d times, want 3", n)
		}
		d.lose("a", errGone)
		synctest.Wait()
		if n := ejected.Load(); n != 4 {
			t.Errorf("after the loss of one more %d ejections, want 4", n)
		}
		p.Close()
	})
}

// TestMuteReturn: the pool does not return to a server that accepts connections and answers nothing. It
// tries less and less often, and returns when the server answers.
func TestMuteReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var discarded atomic.Int32
		p, d := cityPool(t, Options{Connections: 2, Discarded: func(*Seat) { discarded.Add(1) }}, true)
		d.lose("a", errGone)
		time.Sleep(200 * time.Millisecond)
		wantAt(t, p, "a is gone", "b", "b")
		d.set("a", false)
		d.setMute("a", true)
		before := d.count("a")
		var f Flow
		for range 120 {
			time.Sleep(5 * time.Second)
			wantAt(t, p, "a answers nothing", "b", "b")
			e := submit(t, p, &f, 100, 0)
			if e.Seat() == nil {
				t.Fatal("a Call waits")
			}
			p.mu.Lock()
			m := e.Seat().member.(*fakeMember)
			p.mu.Unlock()
			for _, e := range m.take() {
				m.seat.Done(e, 0)
			}
		}
		if n := d.count("a") - before; n < 8 || n > 30 {
			t.Errorf("%d attempts in 10 minutes at a server that answers nothing", n)
		}
		if n := d.connections("a"); n > 1 {
			t.Errorf("%d connections are left to it", n)
		}
		d.setMute("a", false)
		time.Sleep(2 * time.Minute)
		wantAt(t, p, "a answers", "a", "a")
		if got, want := int(discarded.Load()), d.count("a")-before; got != want {
			t.Errorf("%d seats were discarded, want %d", got, want)
		}
	})
}

// TestMuteStart: a pool that has connected to a server that answers nothing goes to another one.
func TestMuteStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCityDialer()
		d.mute["a"] = true
		p, o := cityAt(t, d, Options{Connections: 2, Endpoints: []string{"a", "b"}}, true)
		time.Sleep(o.DialTimeout + 2*time.Second)
		wantAt(t, p, "a answers nothing", "b", "b")
		d.setMute("a", false)
		time.Sleep(time.Minute)
		wantAt(t, p, "a answers", "a", "a")
	})
}

// TestMuteKeeps: a pool that keeps to its endpoint leaves one that answers nothing, too.
func TestMuteKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 1, KeepEndpoint: true}, false)
		wantAt(t, p, "the start", "a")
		d.setMute("a", true)
		d.lose("a", errLost)
		d.set("a", false)
		time.Sleep(12 * time.Second)
		if got := at(p); len(got) != 1 || got[0] == "a" {
			t.Errorf("a answers nothing: connections to %v", got)
		}
	})
}

// TestShutEndpoint: a server that accepts connections and ends them counts as one that is down: a pool that is
// connected elsewhere stays there, and one that is not goes there.
func TestShutEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 2}, true)
		wantAt(t, p, "the start", "a", "a")
		d.mu.Lock()
		d.shut["a"] = true
		d.mu.Unlock()
		d.lose("a", io.EOF)
		d.set("a", false)
		time.Sleep(5 * time.Second)
		wantAt(t, p, "a ends each connection", "b", "b")
		before := d.count("a")
		for range 120 {
			time.Sleep(5 * time.Second)
			wantAt(t, p, "a ends each connection", "b", "b")
		}
		if n := d.count("a") - before; n < 8 || n > 30 {
			t.Errorf("%d attempts in 10 minutes at a server that ends each connection", n)
		}
		d.mu.Lock()
		d.shut["a"] = false
		d.mu.Unlock()
		time.Sleep(2 * time.Minute)
		wantAt(t, p, "a serves", "a", "a")
	})
}

// TestShutWhileDown: the only seat of a pool finds the endpoint that comes back beside one that ends each
// connection, also when it pauses for long between two attempts.
func TestShutWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, keep := range []bool{false, true} {
			d := newCityDialer()
			d.shut["a"], d.down["b"] = true, true
			p, _ := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a", "b"}, KeepEndpoint: keep, BackoffMax: 5 * time.Second}, true)
			time.Sleep(2 * time.Minute)
			d.set("b", false)
			time.Sleep(time.Minute + 15*time.Second)
			wantAt(t, p, "b is back", "b")
			for range 60 {
				time.Sleep(time.Second)
				wantAt(t, p, "a ends each connection", "b")
			}
		}
	})
}

// A lateMember gets its first credits when the pool closes it.
type lateMember struct {
	*fakeMember
	got atomic.Int32 // Calls that went on it then
}

func (m *lateMember) Close(err error) {
	m.seat.Granted(8, Elsewhere)
	m.got.Add(int32(len(m.take())))
	m.fakeMember.Close(err)
}

// A lateDialer makes lateMembers at endpoint a.
type lateDialer struct {
	*cityDialer
	late []*lateMember
}

func (d *lateDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	m, err := d.cityDialer.Dial(ctx, endpoint, affinity, s)
	if err != nil || endpoint != "a" {
		return m, err
	}
	l := &lateMember{fakeMember: m.(*fakeMember)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = append(d.late, l)
	return l, nil
}

// TestMuteLate: a server that answers when the pool has just given the connection up gets no Calls on it.
func TestMuteLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateDialer{cityDialer: newCityDialer()}
		d.mute["a"] = true
		p, o := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a", "b"}}, true)
		time.Sleep(time.Second)
		e := &Entry{Flow: &Flow{}, Cost: 100}
		if err := p.Submit(e, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(o.DialTimeout + 5*time.Second)
		synctest.Wait()
		d.mu.Lock()
		if len(d.late) == 0 || d.late[0].got.Load() != 0 {
			t.Errorf("%d connections to a; Calls went on one that is closed", len(d.late))
		}
		d.mu.Unlock()
		if e.Seat() == nil {
			t.Error("the Call waits still")
		}
		for _, m := range d.all() {
			for _, e := range m.take() {
				m.seat.Done(e, 0)
			}
		}
	})
}

// TestMuteReload: a reload that names another endpoint beside one that answers nothing helps within the time
// for an attempt to connect.
func TestMuteReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCityDialer()
		d.mute["a"] = true
		p, o := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a"}}, false)
		time.Sleep(time.Minute)
		o.Endpoints = []string{"a", "b"}
		o.Health.Set(o.Endpoints, false)
		p.Update(o, false)
		time.Sleep(o.DialTimeout + 2*time.Second)
		wantAt(t, p, "b is named", "b")
	})
}

// TestMuteAlone: where there is no other server, a connection to one that answers nothing stays.
func TestMuteAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{}
		p, _ := newPool(t, Options{Connections: 1}, d)
		time.Sleep(10 * time.Minute)
		if n := len(d.all()); n != 1 {
			t.Errorf("%d connections were made", n)
		}
		p.seats[0].Granted(8, 0)
	})
}

// A namesDialer dials an endpoint of several addresses, of which all but the one number well are mute. It
// tries them in turn.
type namesDialer struct {
	fakeDialer
	well, of, next int
}

func (d *namesDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	if d.of > 1 {
		s.Others()
	}
	d.mu.Lock()
	d.grant = 0
	if d.next%d.of == d.well {
		d.grant = 8
	}
	d.next++
	d.mu.Unlock()
	return d.fakeDialer.Dial(ctx, endpoint, affinity, s)
}

// TestMuteOthers: a connection to the only endpoint, which answers nothing, is left if the endpoint has another
// address, also by a pool that keeps to its endpoint. One to an endpoint of one address stays, although there
// were more before.
func TestMuteOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, keep := range []bool{false, true} {
			d := &namesDialer{of: 3, well: 2}
			p := startPool(t, Options{Connections: 1, KeepEndpoint: keep}, d, &owner{})
			o := p.options()
			time.Sleep(2*o.DialTimeout + time.Second)
			e := submit(t, p, &Flow{}, 100, 0)
			if n := len(d.all()); n != 3 || e.Seat() == nil {
				t.Fatalf("after %d connections a Call waits: %v", n, e.Seat() == nil)
			}
			time.Sleep(10 * o.DialTimeout)
			if n := len(d.all()); n != 3 {
				t.Errorf("%d connections; the one that works was left", n)
			}
			d.mu.Lock()
			d.of, d.well = 1, -1
			d.mu.Unlock()
			d.all()[2].end(io.EOF)
			time.Sleep(10 * o.DialTimeout)
			if n := len(d.all()); n != 4 {
				t.Errorf("%d connections; want one more, to the only address that is left", n)
			}
			p.Close()
		}
	})
}

// TestReturnIsSlow: while an attempt to return to a better endpoint takes its time, the seat notices at once
// that its connection has ended.
func TestReturnIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 1}, true)
		d.lose("a", errGone)
		time.Sleep(200 * time.Millisecond)
		wantAt(t, p, "a is gone", "b")
		d.set("a", false)
		d.setMute("a", true)
		for d.connections("a") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		d.lose("b", errLost)
		time.Sleep(time.Second)
		wantAt(t, p, "b is lost while the pool tries to return to a", "c")
		d.setMute("a", false)
		time.Sleep(2 * time.Minute)
		wantAt(t, p, "a answers", "a")
	})
}

// TestRenewMute: a reload to a server that answers nothing moves one connection, and the rest when the
// server answers.
func TestRenewMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCityDialer()
		d.mute["b"] = true
		p, o := cityAt(t, d, Options{Connections: 4, Endpoints: []string{"a"}}, true)
		wantAt(t, p, "the start", "a", "a", "a", "a")
		o.Endpoints = []string{"b"}
		o.Health.Set(o.Endpoints, true)
		p.Update(o, true)
		time.Sleep(time.Minute)
		wantAt(t, p, "b answers nothing", "a", "a", "a", "b")
		d.setMute("b", false)
		time.Sleep(time.Minute)
		wantAt(t, p, "b answers", "b", "b", "b", "b")
	})
}

// TestDownUntilAnswered: a pool is down until the server answers on a connection, and stays so while the server answers once
// and ends the connection soon, without an answer to a Call.
func TestDownUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCityDialer()
		d.mute["a"] = true
		began := time.Now()
		p, _ := cityAt(t, d, Options{Connections: 1, Endpoints: []string{"a"}}, false)
		want := func(why string, since time.Time) {
			t.Helper()
			synctest.Wait()
			if st := p.Stats(); !st.DownSince.Equal(since) || (st.Usable == 0) == since.IsZero() {
				t.Errorf("%s: down since %v with %d connections, want %v", why, st.DownSince, st.Usable, since)
			}
		}
		for range 3 {
			time.Sleep(10 * time.Second)
			want("the server answers nothing", began)
			d.lose("a", errLost)
			d.set("a", false)
		}
		for range 3 {
			time.Sleep(10 * time.Second)
			d.setMute("a", false)
			want("the server has answered", time.Time{})
			time.Sleep(time.Second)
			d.setMute("a", true)
			d.lose("a", errLost)
			want("the server ends the connection at once", began)
			d.set("a", false)
		}
		d.setMute("a", false)
		time.Sleep(time.Minute)
		want("the server is well", time.Time{})
		d.lose("a", errLost)
		want("the connection is lost", time.Now())
	})
}
