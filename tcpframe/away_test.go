package tcpframe

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// isAway reports whether the socket of c is away from its loop.
func isAway(c *Conn) bool { return onLoop(c, c.sock.Away) }

// parked returns a Conn that is paused and whose socket is away, with its peer, which has sent rest behind a record.
func parked(t *testing.T, e *Engine, r *recorder, rest []byte) (*Conn, *peer) {
	t.Helper()
	conns := make(chan *Conn, 1)
	first, record := true, r.record
	r.record = func(c *Conn, b Buffer) {
		if first {
			first = false
			b.Release()
			c.Pause()
			conns <- c
			return
		}
		record(c, b)
	}
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return r })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(8, 0)))
	c := <-conns
	testkit.Eventually(t, "the Conn is paused", func() bool { return onLoop(c, func() bool { return c.sock.Paused() }) })
	p.send(rest)
	testkit.Eventually(t, "the socket is away", func() bool { return isAway(c) })
	return c, p
}

// TestAway: a paused socket stays on its loop until its peer sends something. While it is away, it is written to, more
// than its buffer takes, and it comes back with all that its peer has sent.
func TestAway(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	want := pattern(300, 1)
	c, p := parked(t, e, echo(), fragment(true, want))
	out := pattern(8<<20, 2)
	c.Loop().Post(loop.TaskFunc(func() { c.Send([][]byte{out}, nil) }))
	if got := p.readRecord(); !bytes.Equal(got, out) {
		t.Fatal("what was sent to the peer has changed")
	}
	if !isAway(c) {
		t.Error("the socket came back although it is paused")
	}
	for range 3 {
		goesOn(t, c, p, want)
		testkit.Eventually(t, "the socket is back", func() bool { return !isAway(c) })
		if got := p.readRecord(); !bytes.Equal(got, want) { // goesOn has sent one more
			t.Fatal("the record came back different")
		}
		pause := make(chan struct{})
		c.Loop().Post(loop.TaskFunc(func() { c.Pause(); close(pause) }))
		<-pause
		testkit.Eventually(t, "the Conn is paused", func() bool { return onLoop(c, func() bool { return c.sock.Paused() }) })
		if isAway(c) {
			t.Fatal("the socket has left although its peer is silent")
		}
		p.send(fragment(true, want))
		testkit.Eventually(t, "the socket is away", func() bool { return isAway(c) })
	}
	p.SetLinger(0)
}

// TestAwayEnds: a socket that is away ends when it is closed or aborted, and when its peer resets it, even on its way
// back. It ends after the octets before it when its peer has sent FIN.
func TestAwayEnds(t *testing.T) {
	t.Parallel()
	mine := errors.New("closed by this side")
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, e *Engine, c *Conn, p *peer)
		want func(error) bool
	}{
		{"Close", func(_ *testing.T, _ *Engine, c *Conn, p *peer) {
			onLoop(c, func() bool { c.Close(mine); return true })
			p.CloseWrite()
		}, func(err error) bool { return err == mine }},
		{"Abort", func(_ *testing.T, _ *Engine, c *Conn, _ *peer) { onLoop(c, func() bool { c.Abort(mine); return true }) }, func(err error) bool { return err == mine }},
		{"RST", func(_ *testing.T, _ *Engine, _ *Conn, p *peer) { p.SetLinger(0); p.Close() }, isReset},
		{"FIN", func(_ *testing.T, _ *Engine, c *Conn, p *peer) {
			p.CloseWrite()
			onLoop(c, func() bool { c.Resume(); return true })
		}, func(err error) bool { return err == io.EOF }},
		{"RST on the way back", func(t *testing.T, _ *Engine, c *Conn, p *peer) {
			onLoop(c, func() bool {
				p.SetLinger(0)
				p.Close()
				testkit.Eventually(t, "the kernel has the RST", func() bool {
					ti, err := unix.GetsockoptTCPInfo(c.sock.Descriptor(), unix.IPPROTO_TCP, unix.TCP_INFO)
					return err == nil && ti.State == unix.BPF_TCP_CLOSE
				})
				c.Resume()
				return true
			})
		}, isReset},
		{"Abort on the way back", func(_ *testing.T, _ *Engine, c *Conn, _ *peer) {
			onLoop(c, func() bool { c.Resume(); c.Loop().Finish(loop.TaskFunc(func() {})); return true })
			onLoop(c, func() bool { c.Abort(mine); return true })
		}, func(err error) bool { return err == mine }},
		{"the engine stops", func(_ *testing.T, e *Engine, _ *Conn, _ *peer) { e.Stop() }, func(err error) bool { return errors.Is(err, loop.ErrStopped) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, EngineOptions{Loops: 1})
			r := newRecorder()
			records := 0
			r.record = func(_ *Conn, b Buffer) { records++; b.Release() }
			c, p := parked(t, e, r, fragment(true, pattern(300, 1)))
			tt.do(t, e, c, p)
			if err := r.wait(t, tt.name); !tt.want(err) {
				t.Errorf("closed with %v", err)
			}
			if tt.name == "FIN" && records != 1 {
				t.Errorf("%d records were delivered before the FIN, want 1", records)
			}
			if n := c.Loop().Conns(); n != 0 {
				t.Errorf("%d sockets on the loop", n)
			}
		})
	}
}

// TestAwayWithoutDescriptors: a socket that is away stays so while there are no descriptors, and comes back later.
func TestAwayWithoutDescriptors(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	want := pattern(300, 1)
	c, p := parked(t, e, echo(), fragment(true, want))
	restore := withoutDescriptors(t)
	c.Loop().Post(resume{c})
	testkit.Eventually(t, "the socket could not come back", func() bool { return onLoop(c, func() bool { return !c.sock.Paused() && c.sock.Away() }) })
	if !isAway(c) {
		t.Error("the socket came back without a descriptor")
	}
	if got := p.readRecord(); !bytes.Equal(got, want) { // it was held, and is sent although the socket is away
		t.Fatal("the record came back different")
	}
	restore()
	for range 3 {
		p.send(fragment(true, want))
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Fatal("the record came back different")
		}
	}
}

// TestAwayAgainAndAgain: octets keep their order, and no descriptor is lost, when floods pause and go on at any time.
func TestAwayAgainAndAgain(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	before := descriptors(t)
	const total, size, clients = 400, 20_000, 6
	sums := make(chan []byte, clients)
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler {
		r := newRecorder()
		h := sha256.New()
		n := 0
		r.record = func(c *Conn, b Buffer) {
			h.Write(b.Bytes())
			b.Release()
			if n++; n == total {
				sums <- h.Sum(nil)
			}
			if n%7 == 0 {
				c.Pause()
				go c.Loop().Post(resume{c})
			}
		}
		return r
	})
	want := sha256.New()
	msg := pattern(size, 3)
	for range total {
		want.Write(msg)
	}
	for range clients {
		p := dialPeer(t, l)
		go func() {
			for range total {
				if _, err := p.Write(fragment(true, msg)); err != nil {
					t.Error(err)
					return
				}
			}
			p.Close()
		}()
	}
	for range clients {
		if !bytes.Equal(<-sums, want.Sum(nil)) {
			t.Error("a stream has changed")
		}
	}
	testkit.Eventually(t, "all connections have ended", func() bool { return connsOf(l) == 0 })
	l.Close()
	testkit.Eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// descriptors returns how many descriptors the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
