package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// replied has s count one Call and its Reply.
func replied(s *slowstart.Window) {
	_, age := s.Received(0)
	s.Answered(0, age, 0)
}

// TestSlowStart: after the start, and after the last connection was lost, few Calls go
// out, and twice as many with every round trip.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1024}
		p, _ := newPool(t, Options{Connections: 2, Loops: 1, SlowStart: slowstart.New(16, 1<<30), BackoffMin: time.Millisecond}, d)
		f := &Flow{}
		for range 8000 {
			submit(t, p, f, 200, 0)
		}
		// round answers all outstanding Calls, and returns how many they were.
		round := func(ms []*fakeMember) (n int) {
			for _, m := range ms {
				for _, e := range m.take() {
					n++
					defer replied(p.slowStart)
					defer m.seat.Done(e, 0)
				}
			}
			return n
		}
		for _, want := range []int{16, 32, 64, 128, 256, 512} {
			if n := round(d.members); n != want {
				t.Fatalf("%d Calls outstanding, want %d", n, want)
			}
		}
		if n := round(d.members); n < 1024 {
			t.Errorf("%d Calls outstanding after the slow start", n)
		}
		for _, m := range d.members[:2] {
			m.end(errLost)
		}
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if n := round(d.members[2:]); n != 16 {
			t.Errorf("%d Calls outstanding after all connections were lost, want 16", n)
		}
	})
}

// TestSlowStartOutlivesAConnection: Calls of a connection that is lost make room for
// Calls on the others.
func TestSlowStartOutlivesAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 64}
		p, _ := newPool(t, Options{Connections: 2, Loops: 2, SlowStart: slowstart.New(16, 1<<30)}, d)
		f := &Flow{}
		for range 32 {
			submit(t, p, f, 200, 0) // to the connection of this loop
		}
		m, other := d.members[0], d.members[1]
		if m.affinity != 0 {
			m, other = other, m
		}
		if n := len(other.got); n != 0 {
			t.Fatalf("%d Calls on the second connection", n)
		}
		got := m.take()
		m.seat.Closing(m)
		for _, e := range got {
			m.seat.Done(e, 0) // given up
		}
		if n := len(other.got); n != 16 {
			t.Errorf("%d Calls on the connection that is left, want 16", n)
		}
		m.seat.Ended(errLost)
	})
}

// TestSlowStartIsShared: the Calls of all pools of an upstream count together, a Call
// that ends in one makes room in the other, and the slow start begins again when none of
// them has a connection.
func TestSlowStartIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowstart.New(16, 1<<30)
		d := &fakeDialer{grant: 64}
		one, _ := newPool(t, Options{Connections: 1, SlowStart: s}, d)
		two, _ := newPool(t, Options{Connections: 1, SlowStart: s}, d)
		m, n := d.members[0], d.members[1]
		var f, g Flow
		for range 16 {
			submit(t, one, &f, 200, 0)
		}
		for range 40 {
			submit(t, two, &g, 200, 0)
		}
		if len(m.got) != 16 || len(n.got) != 0 {
			t.Fatalf("%d and %d Calls are out, want 16 and 0", len(m.got), len(n.got))
		}
		for i, e := range m.take() {
			m.seat.Done(e, 0)
			if got := len(n.got); got != 2*i+1 {
				t.Errorf("%d Replies to one pool: the other has %d Calls, want %d", i, got, 2*i+1)
			}
			replied(s)
			if got := len(n.got); got != 2*i+2 {
				t.Errorf("%d Replies to one pool: the other has %d Calls, want %d", i+1, got, 2*i+2)
			}
		}
		if got := s.Limit(); got != 32 {
			t.Errorf("the limit is %d after 16 Replies, want 32", got)
		}
		m.end(errLost)
		if got := s.Limit(); got != 32 {
			t.Errorf("the limit is %d when one pool has lost its connection, want 32", got)
		}
		n.end(errLost)
		if got := s.Limit(); got != 16 {
			t.Errorf("the limit is %d when both have, want 16", got)
		}
	})
}

// TestSlowStartOfRetired: the slow start goes on while a connection is replaced, and
// begins again when the replaced one ends before its successor is there.
func TestSlowStartOfRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowstart.New(16, 1<<30)
		d := &fakeDialer{grant: 64}
		newPool(t, Options{Connections: 1, SlowStart: s}, d)
		replied(s)
		old := d.members[0]
		old.seat.Retire(old)
		synctest.Wait()
		old.seat.Ended(nil)
		if got := s.Limit(); got != 17 {
			t.Errorf("the limit is %d after a connection was replaced, want 17", got)
		}
		d.mu.Lock()
		d.fail = errLost
		d.mu.Unlock()
		old = d.members[1]
		old.seat.Retire(old)
		synctest.Wait()
		if got := s.Limit(); got != 17 {
			t.Errorf("the limit is %d while there is a connection, want 17", got)
		}
		old.seat.Ended(nil)
		if got := s.Limit(); got != 16 {
			t.Errorf("the limit is %d when there is none, want 16", got)
		}
	})
}
