package pool

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// updated returns the options of newPool, with other connections to another endpoint.
func updated(connections int, endpoint string) Options {
	return complete(Options{Connections: connections, Endpoints: []string{endpoint}})
}

// open returns how many connections of d are open.
func (d *fakeDialer) open() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.members {
		if m.closed == nil {
			n++
		}
	}
	return n
}

func TestUpdateConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 1}, d)
		p.Update(updated(3, "server:20049"), false)
		synctest.Wait()
		if n := len(p.Stats().Connections); n != 3 || d.open() != 3 {
			t.Fatalf("%d seats and %d connections, want 3", n, d.open())
		}
		// Two connections are too many. One of them has Calls, and stays until the last Reply.
		var f Flow
		for range 6 {
			submit(t, p, &f, largeCost, 0)
		}
		busy := d.members[2]
		for _, e := range d.members[1].take() {
			d.members[1].seat.Done(e, 0)
		}
		p.Update(updated(1, "server:20049"), false)
		synctest.Wait()
		if n := len(p.Stats().Connections); n != 1 || d.open() != 2 {
			t.Errorf("%d seats and %d connections, want 1 and the one that has Calls", n, d.open())
		}
		got := busy.take()
		busy.seat.Done(got[0], 0)
		synctest.Wait()
		if busy.closed != nil {
			t.Error("closed with a Call outstanding")
		}
		busy.seat.Done(got[1], 0)
		synctest.Wait()
		if !errors.Is(busy.closed, errRetired) || d.open() != 1 {
			t.Errorf("after the last Reply: closed with %v, %d connections", busy.closed, d.open())
		}
		if n := len(d.members); n != 3 {
			t.Errorf("%d connections were made, want no more than 3", n)
		}
	})
}

// TestUpdateRenews: when a setting of the connections has changed, each is replaced once, and
// Calls go on.
func TestUpdateRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 3}, d)
		var f Flow
		for range 3 {
			submit(t, p, &f, largeCost, 0)
		}
		p.Update(updated(3, "server:20049"), true)
		synctest.Wait()
		if n := len(d.members); n != 6 {
			t.Errorf("%d connections were made, want 6", n)
		}
		if st := p.Stats(); st.Usable != 3 || d.open() != 6 {
			t.Errorf("%d usable of %d connections, want 3 of 6: the others have Calls", st.Usable, d.open())
		}
		for _, m := range d.members[:3] {
			for _, e := range m.take() {
				m.seat.Done(e, 0)
			}
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		if n := len(d.members); n != 6 || d.open() != 3 {
			t.Errorf("%d connections were made and %d are open, want 6 and 3", n, d.open())
		}
		submit(t, p, &f, largeCost, 0)
		if n := len(d.members[3].got) + len(d.members[4].got) + len(d.members[5].got); n != 1 {
			t.Error("a Call does not go to a new connection")
		}
	})
}

// TestUpdateUnreachable: if the new endpoint does not answer, all connections to the old one
// but one go on. When it answers, they are replaced.
func TestUpdateUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 3}, d)
		d.mu.Lock()
		d.fail = errors.New("unreachable")
		d.mu.Unlock()
		p.Update(updated(3, "elsewhere:20049"), false)
		time.Sleep(time.Minute)
		if st := p.Stats(); st.Usable != 2 {
			t.Errorf("%d connections are usable, want the 2 that have no successor", st.Usable)
		}
		d.mu.Lock()
		d.fail = nil
		d.mu.Unlock()
		time.Sleep(time.Minute)
		st := p.Stats()
		for _, c := range st.Connections {
			if c.Endpoint != "elsewhere:20049" || !c.Up {
				t.Errorf("%+v, want all there", c)
			}
		}
		if d.open() != 3 {
			t.Errorf("%d connections are open, want 3", d.open())
		}
	})
}

func TestUpdateClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 1}, d)
		p.Close()
		p.Update(updated(3, "elsewhere:20049"), true)
		synctest.Wait()
		if n := len(d.members); n != 1 {
			t.Errorf("a closed pool has made %d connections", n)
		}
	})
}
