package nfs4test

import (
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A world is a server and clients that are connected to it without a bridge.
type world struct {
	*testing.T
	s  *Server
	cs *Clients
}

func newWorld(t *testing.T, n int, so ServerOptions, change func(*ClientsOptions)) *world {
	t.Helper()
	e, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	x := &world{T: t, s: NewServer(so)}
	t.Cleanup(x.s.Close)
	addr, err := x.s.ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	co := ClientsOptions{Target: addr, Prefix: "host", Renew: -1, Retry: time.Millisecond}
	for _, l := range e.Loops() {
		co.Loops = append(co.Loops, loop.SocketLoop(l))
	}
	if change != nil {
		change(&co)
	}
	x.cs = NewClients(n, co)
	t.Cleanup(x.cs.Close)
	x.cs.Start()
	return x
}

func (x *world) eventually(what string, f func() bool) {
	x.Helper()
	if !testkit.Settles(testkit.Patience, f) {
		x.Fatalf("not within %v: %s; %s; %v", testkit.Patience, what, x.cs.Counts(), x.cs.Err())
	}
}

func (x *world) allUp() {
	x.Helper()
	x.eventually("all are up", func() bool { return x.cs.Up() == x.cs.Len() && x.s.Down() == 0 })
}

// good fails the test if a client saw something wrong.
func (x *world) good() {
	x.Helper()
	if err := x.cs.Err(); err != nil {
		x.Error(err)
	}
	if n := x.s.Misordered.Load(); n > 0 {
		x.Errorf("%d SEQUENCEs were misordered", n)
	}
}

// work has all clients receive n Replies each, on average.
func (x *world) work(depth int, op Op, n int) {
	x.Helper()
	x.workUntil("Replies", depth, op, func(l *Load) bool { return l.Replies.Load() >= int64(n*x.cs.Len()) })
}

// workUntil has all clients send Calls until done.
func (x *world) workUntil(what string, depth int, op Op, done func(*Load) bool) {
	x.Helper()
	all := make([]int, x.cs.Len())
	for i := range all {
		all[i] = i
	}
	l := x.cs.Load(all, depth, op)
	x.eventually(what, func() bool { return done(l) })
	l.Stop()
}

// recall calls client i back and returns the Recall when it is done.
func (x *world) recall(i int, token uint64) *Recall {
	x.Helper()
	r := x.s.Recall(x.cs.Owner(i), token)
	<-r.Done()
	return r
}

// called fails the test unless the callback has come to client i alone, once.
func (x *world) called(i int, r *Recall) {
	x.Helper()
	if got := x.cs.Recalled(r.Token); r.Err != nil || r.Status != OK || len(got) != 1 || got[0] != i {
		x.Errorf("callback %d for client %d: %v, status %d, came to %v", r.Token, i, r.Err, r.Status, got)
	}
}

func TestSessions(t *testing.T) {
	for _, machine := range []bool{false, true} {
		x := newWorld(t, 50, ServerOptions{}, func(o *ClientsOptions) { o.Machine = machine })
		x.allUp()
		x.work(4, OpGetattr, 20)
		x.work(2, 5000, 5)
		x.work(1, OpSequence, 5)
		if n, m := x.s.Sessions(), x.s.BackConnections(); n != 50 || m != 50 {
			t.Errorf("%d sessions and %d connections with a back channel, want 50", n, m)
		}
		for i := range 50 {
			x.called(i, x.recall(i, uint64(i)+100))
		}
		x.called(7, x.recall(7, 1000)) // the sequence number goes on
		x.good()
	}
}

// TestReconnect: a client whose connection ends goes on with its session and binds the next
// connection, and no COMPOUND is executed twice.
func TestReconnect(t *testing.T) {
	for _, machine := range []bool{false, true} {
		x := newWorld(t, 20, ServerOptions{Delay: time.Millisecond}, func(o *ClientsOptions) { o.Machine = machine })
		x.allUp()
		all := make([]int, 20)
		for i := range all {
			all[i] = i
		}
		l := x.cs.Load(all, 4, OpGetattr)
		// Whether a SEQUENCE comes before its connection is bound is a matter of chance.
		unbound := func() bool { return !machine || x.s.Unbound.Load() > 0 }
		for round := 0; round < 10 || !unbound() && round < 500; round++ {
			for i := range all {
				x.cs.Reconnect(i)
			}
			n := l.Replies.Load()
			x.eventually("Replies", func() bool { return l.Replies.Load() > n+200 })
		}
		l.Stop()
		for i := range all {
			x.cs.Renew(i)
		}
		x.allUp()
		x.called(3, x.recall(3, 1))
		// A SEQUENCE may arrive on an aborted connection after the next of its slot, and is misordered:
		// its client sees no Reply.
		if err := x.cs.Err(); err != nil {
			t.Error(err)
		}
		if n := x.s.Sessions(); n != 20 || x.s.Created.Load() != 20 {
			t.Errorf("%d sessions of %d created, want 20", n, x.s.Created.Load())
		}
		if x.cs.Resent.Load() == 0 || x.cs.Binds.Load() == 0 || x.s.Replays.Load()+x.s.Busy.Load() == 0 {
			t.Errorf("%s; %d replays, %d busy: this test tests nothing", x.cs.Counts(), x.s.Replays.Load(), x.s.Busy.Load())
		}
		if !unbound() {
			t.Error("no SEQUENCE was refused on a connection that was not bound")
		}
		x.eventually("a Reply for each COMPOUND that was executed", func() bool {
			return x.s.Executed.Load() == x.cs.Replies.Load()+x.cs.Uncached.Load()
		})
	}
}

// TestFault: a client that does not answer makes the server give up its back channel; it then
// replaces its session.
func TestFault(t *testing.T) {
	x := newWorld(t, 2, ServerOptions{CallbackTimeout: 20 * time.Millisecond}, nil)
	x.allUp()
	x.cs.Silence(0, true)
	if r := x.recall(0, 1); !errors.Is(r.Err, errUnanswered) {
		t.Errorf("an unanswered callback: %v", r.Err)
	}
	if n := x.s.Down(); n != 1 {
		t.Errorf("%d clients without a back channel, want 1", n)
	}
	x.cs.Silence(0, false)
	x.cs.Renew(0)
	x.eventually("the session is replaced", func() bool { return x.cs.Resets.Load() == 1 && x.s.Down() == 0 && x.s.Created.Load() == 3 })
	x.allUp()
	x.called(0, x.recall(0, 2))
	x.called(1, x.recall(1, 3))
	x.good()
	if x.s.Sessions() != 2 {
		t.Errorf("%d sessions, want 2", x.s.Sessions())
	}
}

// TestPathDown: the server has no way to call a client whose connection has ended.
func TestPathDown(t *testing.T) {
	x := newWorld(t, 1, ServerOptions{}, nil)
	x.allUp()
	x.s.DropConnection(0)
	x.eventually("the connection has gone", func() bool { return x.cs.Lost.Load() == 1 && x.s.Down() == 1 })
	if r := x.recall(0, 1); !errors.Is(r.Err, errNoBackChannel) {
		t.Errorf("a callback to nobody: %v", r.Err)
	}
	x.cs.Renew(0)
	x.eventually("the path is repaired", func() bool { return x.cs.Binds.Load() == 1 && x.s.Down() == 0 })
	x.called(0, x.recall(0, 2))
	x.good()
}

// TestForgotten: clients of a server that has started again make new sessions.
func TestForgotten(t *testing.T) {
	x := newWorld(t, 10, ServerOptions{}, nil)
	x.allUp()
	x.s.Forget()
	x.workUntil("all have sessions again", 2, OpGetattr, func(*Load) bool { return x.s.Created.Load() == 20 })
	x.allUp()
	x.called(4, x.recall(4, 1))
	x.good()
	if n := x.s.Sessions(); n != 10 || x.s.Created.Load() != 20 {
		t.Errorf("%d sessions of %d, want 10 of 20", n, x.s.Created.Load())
	}
}

// TestTooMany: the server closes its oldest connections when there are too many.
func TestTooMany(t *testing.T) {
	x := newWorld(t, 12, ServerOptions{Connections: 8}, nil)
	x.eventually("all have a session, and not all a connection", func() bool {
		now, _ := x.s.Connections()
		return x.s.Sessions() == 12 && x.s.Evicted.Load() >= 4 && now <= 8
	})
	x.good()
}
