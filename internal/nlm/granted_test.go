package nlm

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A server of these tests lets every LOCK wait, and keeps the last one.
type waitingServer struct {
	*peer
	locks chan request
	res   chan result // of GRANTED_RES
}

func newWaitingServer(n *network) *waitingServer {
	w := &waitingServer{locks: make(chan request, 8), res: make(chan result, 8)}
	w.peer = n.peer(func(c *oncrpc.Call, _ bool) []byte {
		switch c.Procedure {
		case procLock:
			w.locks <- parsed(n.t, c)
			return statOf(blocked)
		case procGrantedRes:
			var r result
			if !r.parse(c.Message, c.Args, c.Version, procGranted) {
				n.t.Errorf("GRANTED_RES %x", c.Message)
			}
			w.res <- r
			return []byte{}
		}
		return statOf(granted)
	})
	return w
}

// TestGranted: a GRANTED of the server reaches the client that waits, as that knows its lock, in the way that the client
// locks, and the client's answer goes back in the way that the server asked.
func TestGranted(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		for _, async := range []bool{false, true} { // the client
			for _, version := range []uint32{1, 3, 4} {
				for _, message := range []bool{false, true} { // the server
					for _, stat := range []uint32{granted, denied} {
						t.Run(fmt.Sprint(network, async, version, message, stat), func(t *testing.T) {
							t.Parallel()
							testGranted(t, network, async, version, message, stat)
						})
					}
				}
			}
		}
	}
}

func testGranted(t *testing.T, network string, async bool, version uint32, message bool, stat uint32) {
	n := newNetwork(t)
	server := newWaitingServer(n)
	s := n.bridge(server.peer, Options{})
	var client *peer
	offers, results := make(chan request, 8), make(chan result, 8)
	var answers sync.WaitGroup
	defer answers.Wait()
	client = n.peer(func(c *oncrpc.Call, udp bool) []byte {
		if udp != (network == "udp") || c.Version != version {
			t.Errorf("procedure %d of version %d over UDP: %v", c.Procedure, c.Version, udp)
		}
		switch c.Procedure {
		case procGranted, procGrantedMsg:
			r := parsed(t, c)
			offers <- r
			res := (&result{stat: stat}).append(nil, r.cookie, version, procGranted)
			if c.Procedure == procGranted {
				return res
			}
			answers.Go(func() { client.call(s.Addr(), network, oncrpc.ProgramNLM, version, procGrantedRes, res) })
			return []byte{}
		case procLock + 2*toMsg:
			var r result
			if !r.parse(c.Message, c.Args, version, procLock) {
				t.Errorf("LOCK_RES %x", c.Message)
			}
			results <- r
			return []byte{}
		}
		t.Errorf("procedure %d", c.Procedure)
		return nil
	})
	r := client.lock(7, 100, 50)
	procedure := uint32(procLock)
	if async {
		procedure += toMsg
		client.call(s.Addr(), network, oncrpc.ProgramNLM, version, procedure, r.append(nil, version, procLock))
		if res := <-results; res.stat != blocked {
			t.Errorf("LOCK_RES: %+v", res)
		}
	} else if got := client.do(s, network, version, procLock, r); got != blocked {
		t.Errorf("LOCK: stat %d", got)
	}
	offer := <-server.locks
	offer.cookie, offer.name = []byte("the server's"), []byte("server")
	if message {
		server.call(s.Addr(), "tcp", oncrpc.ProgramNLM, version, procGrantedMsg, offer.append(nil, version, procGranted))
		if res := <-server.res; res.stat != stat {
			t.Errorf("GRANTED_RES: %+v, want %d", res, stat)
		}
	} else if got := server.do(s, "tcp", version, procGranted, &offer); got != stat {
		t.Errorf("GRANTED: stat %d, want %d", got, stat)
	}
	got := <-offers
	if got.svid != r.svid || !bytes.Equal(got.oh, r.oh) || !bytes.Equal(got.handle, r.handle) || got.start != 100 || got.length != 50 || string(got.name) != "the bridge" {
		t.Errorf("the client is offered %+v", got)
	}
	want := Snapshot{Held: 1 - int(stat)}
	if x := s.Snapshot(); x.Held != want.Held || x.Waiting != 0 {
		t.Errorf("%+v, want %+v", x, want)
	}
	if stat == granted { // the server asks once more
		if got := server.do(s, "tcp", version, procGranted, &offer); got != granted {
			t.Errorf("GRANTED again: stat %d", got)
		}
		if len(offers) != 0 {
			t.Error("the client is asked twice")
		}
	}
}

// TestGrantedOfStranger: nobody but the server grants locks, and an owner that is not known has none.
func TestGrantedOfStranger(t *testing.T) {
	n := newNetwork(t)
	server := newWaitingServer(n)
	s := n.bridge(server.peer, Options{})
	client := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		t.Errorf("procedure %d", c.Procedure)
		return nil
	})
	client.do(s, "tcp", 4, procLock, client.lock(7, 0, 0))
	offer := <-server.locks
	if got := n.peer(nil).do(s, "tcp", 4, procGranted, &offer); got != denied {
		t.Errorf("of a stranger: stat %d", got)
	}
	offer.svid++
	if got := server.do(s, "tcp", 4, procGranted, &offer); got != denied {
		t.Errorf("of an unknown owner: stat %d", got)
	}
	if x := s.Snapshot(); x.Waiting != 1 || x.Held != 0 {
		t.Errorf("%+v", x)
	}
}

// TestGrantedCrossed: an UNLOCK that crosses the client's answer leaves nothing behind, and a client that does not answer
// goes on waiting.
func TestGrantedCrossed(t *testing.T) {
	n := newNetwork(t)
	server := newWaitingServer(n)
	s := n.bridge(server.peer, Options{})
	var client *peer
	deaf := true
	r := (*peer)(nil).lock(7, 0, 10)
	client = n.peer(func(c *oncrpc.Call, _ bool) []byte {
		if deaf {
			deaf = false
			return (&result{stat: gracePeriod}).append(nil, nil, 4, procGranted)
		}
		client.do(s, "tcp", 4, procUnlock, r)
		return statOf(granted)
	})
	client.do(s, "tcp", 4, procLock, r)
	offer := <-server.locks
	server.do(s, "tcp", 4, procGranted, &offer)
	if x := s.Snapshot(); x.Waiting != 1 || x.Held != 0 {
		t.Errorf("after no answer: %+v", x)
	}
	if got := server.do(s, "tcp", 4, procGranted, &offer); got != granted {
		t.Errorf("stat %d", got)
	}
	if x := s.Snapshot(); x.Waiting+x.Held != 0 {
		t.Errorf("after UNLOCK: %+v", x)
	}
}

// TestGrantedUnanswered: a client that was asked whether it takes a lock, and whose answer was lost, may refuse the lock
// when it is asked again, because it has it. The server must not take the lock for refused. A client that asks for it
// again does not have it.
func TestGrantedUnanswered(t *testing.T) {
	n := newNetwork(t)
	server := newWaitingServer(n)
	state := t.TempDir()
	var s *Server
	lost := make(chan bool, 1)
	client := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		select {
		case <-lost:
			go s.Close() // and with it the connection on which the answer would come
			return nil
		default:
			return statOf(denied)
		}
	})
	s = n.bridge(server.peer, Options{State: state})
	for again, want := range []uint32{granted, denied} {
		client.do(s, "tcp", 4, procLock, client.lock(7, 0, 10))
		offer := <-server.locks
		lost <- true
		if got := server.do(s, "tcp", 4, procGranted, &offer); got != gracePeriod {
			t.Errorf("no answer: stat %d", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s = n.bridge(server.peer, Options{State: state})
		if again == 1 {
			client.do(s, "tcp", 4, procLock, client.lock(7, 0, 10))
			<-server.locks
		}
		if got := server.do(s, "tcp", 4, procGranted, &offer); got != want {
			t.Errorf("asked again: stat %d, want %d", got, want)
		}
		if x := s.Snapshot(); x.Held != 1-int(want) || x.Waiting != 0 {
			t.Errorf("%+v", x)
		}
		client.do(s, "tcp", 4, procUnlock, client.lock(7, 0, 0))
	}
}

// TestClientRestarts: a client that has restarted loses its locks and waits, once, and nobody else's.
func TestClientRestarts(t *testing.T) {
	n := newNetwork(t)
	done := make(chan string, 32)
	server := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		r := parsed(t, c)
		if c.Procedure == procLock {
			if r.exclusive == 0 {
				return statOf(blocked)
			}
			return statOf(granted)
		}
		done <- fmt.Sprint(c.Procedure, " ", r.svid, " ", r.start, " ", r.length)
		return statOf(granted)
	})
	s := n.bridge(server, Options{Metrics: metrics.New()})
	a, b := n.peer(nil), n.peer(nil)
	for _, p := range []*peer{a, b} {
		p.do(s, "tcp", 4, procLock, p.lock(1, 5, 10))
		p.do(s, "tcp", 4, procLock, p.lock(2, 5, 10))
		r := p.lock(2, 50, 0)
		r.exclusive = 0
		p.do(s, "tcp", 4, procLock, r)
	}
	notify := func(p *peer, state uint32) {
		t.Helper()
		p.call(s.Addr(), "udp", oncrpc.ProgramNSM, 1, procNotify, xdr.AppendUint32(xdr.AppendOpaque(nil, []byte("client")), state))
	}
	number := func(p *peer, svid uint32) uint32 {
		return s.table.lookup(identity{client: p.addr, name: "client", svid: svid}).number
	}
	if x := s.Snapshot(); x.Held != 4 || x.Waiting != 2 {
		t.Fatalf("%+v", x)
	}
	want := map[string]bool{
		fmt.Sprint(procUnlock, " ", number(a, 1), " 0 0"): true, fmt.Sprint(procUnlock, " ", number(a, 2), " 0 0"): true,
		fmt.Sprint(procCancel, " ", number(a, 2), " 50 0"): true,
	}
	notify(a, 5)
	for range 3 {
		if got := <-done; !want[got] {
			t.Errorf("the server is told %s, want one of %v", got, want)
		} else {
			delete(want, got)
		}
	}
	testkit.Eventually(t, "the client has no locks", func() bool { x := s.Snapshot(); return x.Held == 2 && x.Waiting == 1 && x.Clients == 1 })
	r := a.lock(1, 0, 0)
	r.state = 0 // a client that does not say it
	a.do(s, "tcp", 4, procLock, r)
	notify(a, 5)
	known := s.series.notices[noticeRepeated].Value()
	if x := s.Snapshot(); x.Held != 3 || len(done) != 0 || known != 1 {
		t.Errorf("the state that is known frees locks: %+v, %d known notices", x, known)
	}
	r.state = 7
	a.do(s, "tcp", 4, procLock, r)
	notify(a, 7) // late: the client has locked since
	followed(t, s, a.addr, 7)
	if x := s.Snapshot(); x.Held != 3 || len(done) != 0 {
		t.Errorf("a late notice frees new locks: %+v", x)
	}
	b.call(s.Addr(), "tcp", oncrpc.ProgramNLM, 4, procFreeAll, xdr.AppendUint32(xdr.AppendOpaque(nil, []byte("client")), 0))
	if x := s.Snapshot(); x.Held != 1 || x.Waiting != 0 || x.Clients != 1 {
		t.Errorf("after FREE_ALL: %+v", x)
	}
}

// followed waits until s has done all that follows from the restart of a host, whose monitor has this state now.
func followed(t *testing.T, s *Server, host netip.Addr, state uint32) {
	t.Helper()
	testkit.Eventually(t, "what follows from the restart is done", func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return s.table.states[host] == monitor{state, false}
	})
}

// TestServerRestarts: each client that has locks is told once, by both names and with the server's state.
func TestServerRestarts(t *testing.T) {
	n := newNetwork(t)
	server := n.peer(func(*oncrpc.Call, bool) []byte { return statOf(granted) })
	s := n.bridge(server, Options{Metrics: metrics.New()})
	told := make(chan string, 8)
	deaf := 1
	client := n.peer(func(c *oncrpc.Call, udp bool) []byte {
		at := xdr.NewCursor(c.Message, c.Args)
		name := opaque(&at, c.Message, maxOwner)
		if deaf--; deaf >= 0 {
			return nil
		}
		told <- fmt.Sprint(c.Program, c.Procedure, " ", string(name), " ", at.Uint32(), udp)
		return []byte{}
	})
	other := n.peer(func(c *oncrpc.Call, _ bool) []byte { t.Errorf("program %d is told", c.Program); return []byte{} })
	client.do(s, "tcp", 4, procLock, client.lock(1, 0, 0))
	other.do(s, "tcp", 4, procTest, client.lock(1, 0, 0))
	for range 2 {
		server.call(s.Addr(), "udp", oncrpc.ProgramNSM, 1, procNotify, xdr.AppendUint32(xdr.AppendOpaque(nil, []byte("server")), 9))
	}
	for _, name := range []string{"the bridge", s.Addr().Addr().String()} {
		if got, want := <-told, fmt.Sprint(100024, 6, " ", name, " 9 true"); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	followed(t, s, server.addr, 9)
	if known := s.series.notices[noticeRepeated].Value(); len(told) != 0 || known != 1 {
		t.Errorf("told again %d times; %d notices of the state that is known", len(told), known)
	}
	if x := s.Snapshot(); x.Held != 1 {
		t.Errorf("the client will reclaim its lock: %+v", x)
	}
	if got := client.call(s.Addr(), "tcp", oncrpc.ProgramNSM, 1, procMon, nil); !bytes.Equal(got, []byte{0, 0, 0, 1, 0, 0, 0, 1}) {
		t.Errorf("MON: %x", got)
	}
}

// TestServerAway: Calls of clients survive a server that breaks connections, and one that does not answer does not make
// clients hang.
func TestServerAway(t *testing.T) {
	n := newNetwork(t)
	calls := 0
	var s *Server
	server := n.peer(func(*oncrpc.Call, bool) []byte {
		if calls++; calls == 1 {
			s.upstream.mu.Lock()
			l := s.upstream.link
			s.upstream.mu.Unlock()
			l.end()
			return nil
		}
		return statOf(granted)
	})
	s = n.bridge(server, Options{})
	client := n.peer(nil)
	if got := client.do(s, "tcp", 4, procLock, client.lock(1, 0, 0)); got != granted || calls != 2 {
		t.Errorf("stat %d after %d Calls", got, calls)
	}
}

// TestOwners: the opaque of an owner comes back as it was, however long, and a hash that two owners have gives two numbers.
func TestOwners(t *testing.T) {
	table := newTable([32]byte{1})
	id := identity{client: netip.MustParseAddr("192.0.2.1"), svid: 1}
	for _, n := range []int{0, 1, maxOwner - 9, maxOwner - 8, maxOwner} {
		r := &request{oh: bytes.Repeat([]byte{'o'}, n)}
		o := table.begin(id, path{}, r, credential{})
		if got := table.far(o, r.oh); len(got) > maxOwner || !bytes.Equal(table.near(o, got), r.oh) {
			t.Errorf("%d octets: %d, and back %d", n, len(got), len(table.near(o, got)))
		}
	}
	first := table.lookup(id)
	other := identity{client: netip.MustParseAddr("192.0.2.2"), svid: 1}
	taken := table.lookup(other).number
	table.numbers[taken] = first
	if again := table.lookup(other).number; again == taken || again == first.number {
		t.Error("two owners have one number")
	}
}

// TestUnlockFollowsAnswer: a process unlocks as soon as its client has the lock, before the client's answer to the grant is here. The
// server gets the answer first. Without one the UNLOCK goes all the same, and soon.
func TestUnlockFollowsAnswer(t *testing.T) {
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprintf("answers %v", answers), func(t *testing.T) {
			n := newNetwork(t)
			order := make(chan uint32, 8)
			locks, unlocked := make(chan request, 1), make(chan struct{})
			server := n.peer(func(c *oncrpc.Call, _ bool) []byte {
				switch c.Procedure {
				case procLock:
					locks <- parsed(t, c)
					return statOf(blocked)
				case procUnlock:
					order <- procUnlock
					close(unlocked)
				case procGrantedRes:
					order <- procGrantedRes
					return []byte{}
				}
				return statOf(granted)
			})
			s := n.bridge(server, Options{})
			var client *peer
			var work sync.WaitGroup
			defer work.Wait()
			client = n.peer(func(c *oncrpc.Call, _ bool) []byte {
				work.Go(func() { client.do(s, "tcp", 4, procUnlock, client.lock(1, 0, 10)) })
				if !answers {
					return nil
				}
				select {
				case <-unlocked: // in the wrong order
				case <-time.After(300 * time.Millisecond):
				}
				return statOf(granted)
			})
			client.do(s, "tcp", 4, procLock, client.lock(1, 0, 10))
			offer := <-locks
			began := time.Now()
			server.call(s.Addr(), "tcp", oncrpc.ProgramNLM, 4, procGrantedMsg, offer.append(nil, 4, procGranted))
			want := uint32(procGrantedRes)
			if !answers {
				want = procUnlock
			}
			if first := <-order; first != want {
				t.Errorf("the server gets procedure %d first, want %d", first, want)
			}
			<-unlocked
			if d := time.Since(began); d > clientTimeout/2 {
				t.Errorf("the server gets the UNLOCK after %v", d)
			}
			if answers {
				testkit.Eventually(t, "the bridge knows no lock", func() bool { return s.Snapshot().Held == 0 })
			}
		})
	}
}

// TestAnswerWithoutReply: clients that lock by LOCK_MSG over UDP may send a GRANTED_RES alone, and no Reply to GRANTED_MSG. The
// server gets the answer at once.
func TestAnswerWithoutReply(t *testing.T) {
	n := newNetwork(t)
	server := newWaitingServer(n)
	s := n.bridge(server.peer, Options{})
	var client *peer
	var work sync.WaitGroup
	defer work.Wait()
	client = n.peer(func(c *oncrpc.Call, _ bool) []byte {
		if c.Procedure != procGrantedMsg {
			return []byte{} // LOCK_RES
		}
		res := (&result{stat: granted}).append(nil, parsed(t, c).cookie, 4, procGranted)
		work.Go(func() { client.call(s.Addr(), "udp", oncrpc.ProgramNLM, 4, procGrantedRes, res) })
		return nil
	})
	client.call(s.Addr(), "udp", oncrpc.ProgramNLM, 4, procLock+toMsg, client.lock(1, 0, 10).append(nil, 4, procLock))
	offer := <-server.locks
	began := time.Now()
	server.call(s.Addr(), "tcp", oncrpc.ProgramNLM, 4, procGrantedMsg, offer.append(nil, 4, procGranted))
	<-server.res
	if d := time.Since(began); d > voidTimeout/2 {
		t.Errorf("the server gets the answer after %v", d)
	}
}
