package tcpframe

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// passesOf has n peers on one loop send a record of size octets each while the loop is busy, and returns how many
// records each pass has delivered then.
func passesOf(t *testing.T, n, size int) map[uint64]int {
	e := startEngine(t, EngineOptions{Loops: 1})
	passes, delivered := make(map[uint64]int), make(chan struct{}, n)
	var conns []*Conn
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler {
		r := newRecorder()
		r.opened = func(c *Conn) { conns = append(conns, c) }
		r.record = func(c *Conn, b Buffer) {
			b.Release()
			passes[c.Loop().Pass()]++
			delivered <- struct{}{}
		}
		return r
	})
	var peers []*peer
	for range n {
		peers = append(peers, dialPeer(t, l))
	}
	testkit.Eventually(t, "they are counted", func() bool { return connsOf(l) == n })
	busy, done := make(chan struct{}), make(chan struct{})
	e.Loops()[0].Post(loop.TaskFunc(func() { close(busy); <-done }))
	<-busy
	for _, p := range peers {
		p.send(fragment(true, pattern(size, 1)))
	}
	for _, c := range conns {
		testkit.Eventually(t, "it is readable", c.sock.InputWaits)
	}
	close(done)
	for range n {
		<-delivered
	}
	e.Stop()
	return passes
}

// TestPassServesMany: the sockets that are ready together are served in one pass, so that what it sends is written
// together.
func TestPassServesMany(t *testing.T) {
	t.Parallel()
	passes := passesOf(t, 16, 200)
	// The kernel may tell of an octet a moment after it can be read: not all need be in one pass.
	if most := slices.Max(slices.Collect(maps.Values(passes))); most < 8 {
		t.Errorf("16 records came in %d passes: %v", len(passes), passes)
	}
}

// TestPassOctets: a pass ends when it has read 64 KiB, so that nothing it sends has to wait for the others.
func TestPassOctets(t *testing.T) {
	t.Parallel()
	for pass, n := range passesOf(t, 16, 40<<10) {
		if n > 2 {
			t.Errorf("pass %d delivered %d records of 40 KiB", pass, n)
		}
	}
}

// TestBusyPoll: a loop that polls is awake when a record comes soon, and stops polling after the time.
func TestBusyPoll(t *testing.T) {
	t.Parallel()
	const rounds = 200
	for _, busy := range []time.Duration{0, 50 * time.Millisecond} {
		e := startEngine(t, EngineOptions{Loops: 1, BusyPoll: busy, tick: time.Hour})
		l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
		p := dialPeer(t, l)
		want := pattern(300, 1)
		polled := func() (n uint64) {
			done := make(chan struct{})
			e.Loops()[0].Post(loop.TaskFunc(func() { n = e.Loops()[0].Tally().Polled; close(done) }))
			<-done
			return n
		}
		for range rounds {
			p.send(fragment(true, want))
			if got := p.readRecord(); !bytes.Equal(got, want) {
				t.Fatal("the record came back different")
			}
		}
		switch n := polled(); {
		case busy == 0 && n > 0:
			t.Errorf("polled %d times in %d rounds, although it does not poll", n, rounds)
		case busy > 0 && n < rounds/2:
			t.Errorf("polled %d times in %d rounds, although it polls", n, rounds)
		}
		testkit.Eventually(t, "it sleeps", func() bool { before := polled(); return polled() == before })
	}
}

// TestYield: a loop serves its sockets while gnet opens others, and waits for them itself again afterwards.
func TestYield(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	want := pattern(300, 1)
	round := func() {
		p.send(fragment(true, want))
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Fatal("the record came back different")
		}
	}
	round()
	var opening sync.WaitGroup
	for range 8 {
		opening.Go(func() {
			for range 20 {
				a, b := testkit.TCPPair(t)
				s := testkit.NewEchoStream(t)
				if err := e.Loops()[0].Attach(a, s); err != nil {
					t.Error(err)
				}
				b.Close()
				<-s.Ended
			}
		})
	}
	opened := make(chan struct{})
	go func() { opening.Wait(); close(opened) }()
	for open := true; open; {
		select {
		case <-opened:
			open = false
		default:
			round()
		}
	}
	round()
}

// TestEndBeforeLaterInput: when a connection has ended, what came later from others is handled after its Closed.
func TestEndBeforeLaterInput(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1})
	conns, early := make(chan *Conn, 2), make(chan bool, 1)
	ended := false // the loop's
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler {
		r := newRecorder()
		r.opened = func(c *Conn) { conns <- c }
		r.closed = func(*Conn, error) { ended = true }
		r.record = func(_ *Conn, b Buffer) {
			b.Release()
			early <- !ended
		}
		return r
	})
	near := dialPeer(t, l)
	nearConn := <-conns
	other := dialPeer(t, l)
	otherConn := <-conns
	busy, done := make(chan struct{}), make(chan struct{})
	e.Loops()[0].Post(loop.TaskFunc(func() { close(busy); <-done }))
	<-busy
	near.Close()
	testkit.Eventually(t, "the end is readable", func() bool { return readable(t, nearConn.sock.Descriptor()) })
	other.send(fragment(true, pattern(100, 1)))
	testkit.Eventually(t, "the record is readable", otherConn.sock.InputWaits)
	close(done)
	if <-early {
		t.Error("a record was handled before the end of a connection that came before it")
	}
}

// readable reports whether a read of the socket fd would return at once.
func readable(t *testing.T, fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	if err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
	return n == 1
}

// TestTrafficBringsAll: every octet comes in by gnet's OnTraffic, or is read inside it.
func TestTrafficBringsAll(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	plain := dialPeer(t, y.l)
	secured := y.secure(clientConfig())
	for _, n := range []int{100, 100_000, 3 << 20} {
		secured.served(n)
		done := make(chan struct{})
		go func() { defer close(done); plain.send(fragment(true, pattern(n, 1))) }()
		plain.readRecord()
		<-done
	}
	near, far := testkit.TCPPair(t)
	r := testkit.NewEchoStream(t)
	if err := y.e.Loops()[1].Attach(near, r); err != nil {
		t.Fatal(err)
	}
	const raw = 1 << 20
	go far.Write(pattern(raw, 2))
	if _, err := io.ReadFull(far, make([]byte, raw)); err != nil {
		t.Fatal(err)
	}
	var lent uint64
	for _, l := range y.e.Loops() {
		n := make(chan uint64)
		l.Post(loop.TaskFunc(func() { n <- l.Tally().Lent }))
		lent += <-n
	}
	if want := y.l.counters.received.Value() + raw; lent != want || want < 2*(3<<20) {
		t.Errorf("OnTraffic has brought %d octets of %d", lent, want)
	}
	secured.Close()
}
