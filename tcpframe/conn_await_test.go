package tcpframe

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An awaiter is a recorder that awaits input before it reads.
type awaiter struct {
	*recorder
	input func(*Conn)
}

func (a *awaiter) Input(c *Conn) { a.input(c) }

func newAwaiter(input func(*Conn)) *awaiter {
	a := &awaiter{echo(), input}
	a.opened = (*Conn).AwaitInput
	return a
}

// A Conn that awaits input reads nothing until Input was called, and then as usual.
func TestAwaitInput(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	inputs := make(chan *Conn, 8)
	a := newAwaiter(func(c *Conn) { c.Pause(); inputs <- c })
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return a })
	p := dialPeer(t, l)
	want := pattern(300, 1)
	p.send(fragment(true, want))
	c := <-inputs
	if n := c.counters.received.Value(); n != 0 {
		t.Errorf("%d octets were read before Input", n)
	}
	goesOn(t, c, p, want)
	if len(inputs) != 0 {
		t.Error("Input was called twice")
	}
}

// A peer that closes while its input is awaited, or while the Conn is paused by Input, ends.
func TestAwaitInputEnds(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	for _, tt := range []struct {
		name string
		act  func(p *peer)
		want error
	}{
		{"FIN", func(p *peer) { p.CloseWrite() }, io.EOF},
		{"RST", func(p *peer) { p.SetLinger(0); p.Close() }, nil},
	} {
		a := newAwaiter(func(*Conn) { t.Errorf("%s: Input was called", tt.name) })
		l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return a })
		p := dialPeer(t, l)
		testkit.Eventually(t, "it is counted", func() bool { return connsOf(l) == 1 })
		tt.act(p)
		if err := a.wait(t, tt.name); tt.want != nil && !errors.Is(err, tt.want) || err == nil {
			t.Errorf("%s: closed with %v", tt.name, err)
		}
	}
}

// A Conn that is closed from this side while it awaits input ends in order.
func TestAwaitInputClose(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	a := newAwaiter(func(*Conn) {})
	a.opened = func(c *Conn) { c.AwaitInput(); c.Close(nil) }
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return a })
	p := dialPeer(t, l)
	p.wantEnd("it was closed")
	p.Close()
	if err := a.wait(t, "closed"); err != nil {
		t.Error(err)
	}
}

type resume struct{ c *Conn }

func (r resume) Run() { r.c.Resume() }

// goesOn resumes c, which Input has paused, and fails the test unless p gets an echo of want, which it has sent, and of
// what it sends after that.
func goesOn(t *testing.T, c *Conn, p *peer, want []byte) {
	t.Helper()
	c.Loop().Post(resume{c})
	for range 3 {
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Fatal("the record came back different")
		}
		p.send(fragment(true, want))
	}
}

// TestAwaitInputAnnounced: Input comes before the first record also if that came in one read with the header of a proxy.
func TestAwaitInputAnnounced(t *testing.T) {
	t.Parallel()
	inputs := make(chan *Conn, 8)
	x := newProxyTestOf(t, EngineOptions{}, ListenOptions{}, func() RecordHandler {
		return newAwaiter(func(c *Conn) { c.Pause(); inputs <- c })
	})
	p := x.dialFrom("127.0.0.1")
	want := pattern(300, 1)
	p.send(append(header("192.0.2.7:700"), fragment(true, want)...))
	var c *Conn
	select {
	case c = <-inputs:
	case <-time.After(testkit.Patience):
		t.Fatal("no Input")
	}
	if n := c.records; n != 0 {
		t.Errorf("%d records were read before Input", n)
	}
	goesOn(t, c, p, want)
	if len(inputs) != 0 {
		t.Error("Input was called twice")
	}
}

// TestAwaitInputUrgent: urgent data, which are not read, do not stand for input.
func TestAwaitInputUrgent(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	inputs := make(chan struct{}, 8)
	a := newAwaiter(func(*Conn) { inputs <- struct{}{} })
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return a })
	p := dialPeer(t, l)
	testkit.Eventually(t, "it is counted", func() bool { return connsOf(l) == 1 })
	raw, err := p.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte{1}, unix.MSG_OOB, nil) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatalf("urgent data: %v", err)
	}
	want := pattern(300, 1)
	p.send(fragment(true, want))
	if got := p.readRecord(); !bytes.Equal(got, want) {
		t.Fatal("the record came back different")
	}
	if len(inputs) != 1 {
		t.Errorf("Input was called %d times, want once", len(inputs))
	}
}
