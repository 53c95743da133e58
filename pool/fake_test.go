package pool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeMember keeps the Calls that are dispatched to it until it ends. It returns the credit of a Call that comes
// later at once, because the pool may have chosen it before it ended.
type fakeMember struct {
	seat     *Seat
	mu       sync.Mutex
	got      []*Entry
	closed   error
	ended    bool
	affinity int
	sent     func(*Entry) // called by Dispatch; may be nil
}

func (m *fakeMember) Dispatch(e *Entry, here int) {
	for e != nil {
		next := e.Unlink()
		m.send(e)
		e = next
	}
}

func (m *fakeMember) send(e *Entry) {
	m.mu.Lock()
	late := m.ended
	if !late {
		m.got = append(m.got, e)
	}
	m.mu.Unlock()
	switch {
	case late:
		m.seat.Done(e, m.affinity)
	case m.sent != nil:
		m.sent(e)
	}
}
func (m *fakeMember) Affinity() int { return m.affinity }
func (m *fakeMember) Close(err error) {
	m.mu.Lock()
	m.closed = err
	m.mu.Unlock()
	m.end(err)
}

// end returns the credit of every Call and ends the connection, unless it has ended.
func (m *fakeMember) end(err error) []*Entry {
	m.seat.Closing(m)
	m.mu.Lock()
	over := m.ended
	got := m.got
	m.ended, m.got = true, nil
	m.mu.Unlock()
	if over {
		return nil
	}
	for _, e := range got {
		m.seat.Done(e, m.affinity)
	}
	m.seat.Ended(err)
	return got
}

// isOpen reports whether nothing has closed m.
func (m *fakeMember) isOpen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed == nil
}

func (m *fakeMember) take() []*Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	got := m.got
	m.got = nil
	return got
}

// has reports whether m has e.
func (m *fakeMember) has(e *Entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.got, e)
}

// drop removes e, and reports whether m had it.
func (m *fakeMember) drop(e *Entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.got, e)
	if i >= 0 {
		m.got = slices.Delete(m.got, i, i+1)
	}
	return i >= 0
}

type fakeDialer struct {
	mu      sync.Mutex
	fail    error
	grant   int
	members []*fakeMember
	dials   []time.Time
}

func (d *fakeDialer) Dial(_ context.Context, _ string, affinity int, s *Seat) (Member, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials = append(d.dials, time.Now())
	if d.fail != nil {
		return nil, d.fail
	}
	m := &fakeMember{seat: s, affinity: affinity}
	s.Granted(d.grant, Elsewhere)
	d.members = append(d.members, m)
	return m, nil
}

// all returns the connections that were made so far.
func (d *fakeDialer) all() []*fakeMember {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.members)
}

type owner struct {
	mu      sync.Mutex
	expired []*Entry
	errs    []error
}

func (o *owner) Expired(e *Entry, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expired = append(o.expired, e)
	o.errs = append(o.errs, err)
}

// list returns the Calls that were given back so far, and why.
func (o *owner) list() ([]*Entry, []error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.expired), slices.Clone(o.errs)
}

// complete returns o with a usual value for each setting that a test does not care about.
func complete(o Options) Options {
	if o.Endpoints == nil {
		o.Endpoints = []string{"server:20049"}
	}
	o.Connections = cmp.Or(o.Connections, 4)
	o.Loops = cmp.Or(o.Loops, 1)
	o.BackoffMin = cmp.Or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, 5*time.Second)
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.QueueWait = cmp.Or(o.QueueWait, 30*time.Second)
	o.QueueLimit = cmp.Or(o.QueueLimit, 65536)
	o.Idle = cmp.Or(o.Idle, testIdle)
	return o
}

// idlePool makes a pool of o, completed, which the test starts and closes.
func idlePool(tb testing.TB, o Options, d Dialer, ow Owner) *Pool {
	tb.Helper()
	p, err := New(complete(o), d, ow)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// startPool makes and starts a pool of o, completed, and closes it at the end of the test.
func startPool(t *testing.T, o Options, d Dialer, ow Owner) *Pool {
	t.Helper()
	p := idlePool(t, o, d, ow)
	p.Start()
	t.Cleanup(p.Close)
	synctest.Wait()
	return p
}

func newPool(t *testing.T, o Options, d *fakeDialer) (*Pool, *owner) {
	t.Helper()
	ow := &owner{}
	return startPool(t, o, d, ow), ow
}

func submit(t *testing.T, p *Pool, f *Flow, cost, here int) *Entry {
	t.Helper()
	e := &Entry{Flow: f, Cost: cost}
	if err := p.Submit(e, here); err != nil {
		t.Fatalf("Submit: %v", err)
	}
	return e
}
