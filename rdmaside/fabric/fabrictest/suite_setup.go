package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of how connections start.

func testPrivateData(t *testing.T, f *Fixture) {
	for _, n := range []int{0, 1, 8, 56, 248} {
		to, back := testkit.Pattern(n, 1), testkit.Pattern(n, 2)
		if f.diverges(PaddedPrivateData) {
			to, back = to[:min(n, 56)], back[:min(n, 196)]
		}
		seen := make(chan []byte, 1)
		other := newEndpoint(t, "accepted", f.AcceptLoop)
		l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
			seen <- bytes.Clone(in.PrivateData())
			if !in.Peer().IsValid() {
				t.Error("Incoming.Peer is not valid")
			}
			if _, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{PrivateData: back}, other); err != nil {
				t.Errorf("Accept: %v", err)
			}
		})
		dial := newEndpoint(t, "dialled", f.DialLoop)
		if _, err := f.dial(l, fabric.ConnOptions{PrivateData: to}, dial); err != nil {
			t.Fatalf("Dial with %d octets of private data: %v", n, err)
		}
		if got := f.unpadded(t, <-seen, to); !bytes.Equal(got, to) {
			t.Errorf("Incoming.PrivateData = %x, want %x", got, to)
		}
		other.wait("Setup", func() bool { return other.setups == 1 })
		var got, gotOther fabric.Info
		dial.do(func() { got = dial.conn.Info() })
		other.do(func() { gotOther = other.conn.Info() })
		got.PrivateData, gotOther.PrivateData = f.unpadded(t, got.PrivateData, back), f.unpadded(t, gotOther.PrivateData, to)
		if !bytes.Equal(got.PrivateData, back) || !bytes.Equal(gotOther.PrivateData, to) {
			t.Errorf("Info.PrivateData: dialled %x, accepted %x; want %x, %x", got.PrivateData, gotOther.PrivateData, back, to)
		}
		if got.Provider != f.Dialer.Name() {
			t.Errorf("Info.Provider = %q, want %q", got.Provider, f.Dialer.Name())
		}
		if got.Peer != gotOther.Local || got.Local != gotOther.Peer {
			t.Errorf("addresses do not match: %v-%v and %v-%v", got.Local, got.Peer, gotOther.Local, gotOther.Peer)
		}
		(&pair{dial: dial, other: other}).end()
		_ = l.Close()
	}

	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		t.Error("a connection with too much private data arrived")
		_ = in.Reject(nil)
	})
	dial := newEndpoint(t, "dialled", f.DialLoop)
	if _, err := f.dial(l, fabric.ConnOptions{PrivateData: make([]byte, 249)}, dial); err == nil {
		t.Error("Dial took 249 octets of private data")
	}
	dial.silent()
}

// unpadded returns private data without the zeros behind the octets that were sent.
func (f *Fixture) unpadded(t *testing.T, got, sent []byte) []byte {
	if !f.diverges(PaddedPrivateData) {
		return got
	}
	if len(got) < len(sent) {
		t.Errorf("%d octets of private data arrived of %d", len(got), len(sent))
		return got
	}
	if rest := got[len(sent):]; !bytes.Equal(rest, make([]byte, len(rest))) {
		t.Errorf("private data are padded with %x", rest)
	}
	return got[:len(sent)]
}

func testReject(t *testing.T, f *Fixture) {
	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		if err := in.Reject([]byte("full")); err != nil {
			t.Errorf("Reject: %v", err)
		}
	})
	dial := newEndpoint(t, "dialled", f.DialLoop)
	if _, err := f.dial(l, fabric.ConnOptions{}, dial); !errors.Is(err, fabric.ErrRejected) {
		t.Errorf("Dial of a rejecting listener: %v, want ErrRejected", err)
	}
	dial.silent()
}

func testAllow(t *testing.T, f *Fixture) {
	refused := make(chan string, 16)
	l := f.listen(t, fabric.ListenOptions{
		Allow: func(netip.Addr) bool { return false },
		Refused: func(_ netip.AddrPort, reason string, _ error) {
			select {
			case refused <- reason:
			default:
			}
		},
	}, func(in fabric.Incoming) {
		t.Error("a denied address reached the listener")
		_ = in.Reject(nil)
	})
	dial := newEndpoint(t, "dialled", f.DialLoop)
	if _, err := f.dial(l, fabric.ConnOptions{}, dial); err == nil {
		t.Error("Dial from a denied address succeeded")
	}
	dial.silent()
	select {
	case reason := <-refused:
		if reason == "" {
			t.Error("Refused was given no reason")
		}
	case <-time.After(patience):
		t.Error("Refused was not called")
	}
}

func testNoListener(t *testing.T, f *Fixture) {
	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) { _ = in.Reject(nil) })
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	dial := newEndpoint(t, "dialled", f.DialLoop)
	if _, err := f.dial(l, fabric.ConnOptions{}, dial); err == nil {
		t.Error("Dial of a closed listener succeeded")
	}
	dial.silent()
}

// testNoLimits checks that limits must be set.
func testNoLimits(t *testing.T, f *Fixture) {
	for _, o := range []fabric.ListenOptions{
		{MaxStarting: 1, MaxStartingPerAddr: 1},
		{MaxConnections: 1, MaxStartingPerAddr: 1},
		{MaxConnections: 1, MaxStarting: 1},
	} {
		if l, err := f.Acceptor.Listen(f.Listen, o, nil); err == nil {
			t.Errorf("Listen accepts %+v", o)
			_ = l.Close()
		}
	}
}

func testMaxConnections(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{listen: fabric.ListenOptions{MaxConnections: 1}})
	second := newEndpoint(t, "second", f.DialLoop)
	if _, err := f.dial(p.listener, fabric.ConnOptions{}, second); err == nil {
		t.Error("a second connection got past MaxConnections 1")
	}
	second.silent()
	p.dial.send([]byte("the first one works"))
	p.other.waitMessages(1)
}

func testDialCanceled(t *testing.T, f *Fixture) {
	arrived := make(chan struct{})
	proceed := make(chan struct{})
	result := make(chan error, 1)
	other := newEndpoint(t, "accepted", f.AcceptLoop)
	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		close(arrived)
		<-proceed
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := in.Accept(ctx, f.AcceptLoop, fabric.ConnOptions{}, other)
		result <- err
	})
	ctx, cancel := context.WithCancel(context.Background())
	dial := newEndpoint(t, "dialled", f.DialLoop)
	done := make(chan error, 1)
	go func() {
		_, err := f.Dialer.Dial(ctx, f.DialLoop, l.Addr().String(), fabric.ConnOptions{}, dial)
		done <- err
	}()
	<-arrived
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Dial succeeded before the peer accepted")
		}
	case <-time.After(patience):
		t.Fatal("Dial did not return after its context was canceled")
	}
	close(proceed)
	// The accepting side finds out at once or when it uses the connection.
	if err := <-result; err == nil {
		_ = other.waitClosed()
	} else {
		other.silent()
	}
	dial.silent()
}

func testSetupFails(t *testing.T, f *Fixture) {
	boom := errors.New("boom")
	t.Run("Dial", func(t *testing.T) {
		other := newEndpoint(t, "accepted", f.AcceptLoop)
		accepted := make(chan error, 1)
		l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
			_, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{}, other)
			accepted <- err
		})
		dial := newEndpoint(t, "dialled", f.DialLoop)
		dial.setupErr = boom
		if _, err := f.dial(l, fabric.ConnOptions{}, dial); !errors.Is(err, boom) {
			t.Errorf("Dial: %v, want Setup's error", err)
		}
		if err := <-accepted; err == nil {
			_ = other.waitClosed()
		}
		dial.mu.Lock()
		defer dial.mu.Unlock()
		if dial.closed || len(dial.completions) > 0 {
			t.Error("the handler was called after Dial failed")
		}
	})
	t.Run("Accept", func(t *testing.T) {
		other := newEndpoint(t, "accepted", f.AcceptLoop)
		other.setupErr = boom
		accepted := make(chan error, 1)
		l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
			_, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{}, other)
			accepted <- err
		})
		dial := newEndpoint(t, "dialled", f.DialLoop)
		if _, err := f.dial(l, fabric.ConnOptions{}, dial); err == nil {
			_ = dial.waitClosed()
		} else {
			dial.silent()
		}
		if err := <-accepted; !errors.Is(err, boom) {
			t.Errorf("Accept: %v, want Setup's error", err)
		}
		other.mu.Lock()
		defer other.mu.Unlock()
		if other.closed || len(other.completions) > 0 {
			t.Error("the handler was called after Accept failed")
		}
	})
}

func testListenerClose(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	if err := p.listener.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	p.dial.send([]byte("still here"))
	p.other.waitMessages(1)
	p.other.send([]byte("so am I"))
	p.dial.waitMessages(1)
}

func testManyConnections(t *testing.T, f *Fixture) {
	const conns, rounds = 50, 20
	var echoed atomic.Int64
	l := listenEcho(t, f, rounds, &echoed)
	ends := dialMany(t, f, l, conns, rounds)
	for round := range rounds {
		for i, e := range ends {
			e.send([]byte{byte(i), byte(round)})
		}
	}
	for i, e := range ends {
		for round, msg := range e.waitMessages(rounds) {
			if !bytes.Equal(msg, []byte{byte(i), byte(round)}) {
				t.Errorf("connection %d, message %d: %x", i, round, msg)
			}
		}
		e.close(nil)
	}
	for _, e := range ends {
		if err := e.waitClosed(); err != nil {
			t.Errorf("Closed(%v) after Close(nil)", err)
		}
	}
	if n := echoed.Load(); n != conns*rounds {
		t.Errorf("%d messages echoed, want %d", n, conns*rounds)
	}
}

// listenEcho listens for connections on which every message is sent back, and counted
// in echoed. Each connection has Receives for rounds messages.
func listenEcho(t *testing.T, f *Fixture, rounds int, echoed *atomic.Int64) fabric.Listener {
	return f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		other := newEndpoint(t, "accepted", f.AcceptLoop)
		other.receives = rounds // nothing else holds the senders back
		other.onReceive = func(e *endpoint, msg []byte) {
			echoed.Add(1)
			if _, err := e.postSend(fabric.Send{Parts: [][]byte{msg}}); err != nil {
				t.Errorf("echo: %v", err)
			}
		}
		if _, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{}, other); err != nil {
			t.Errorf("Accept: %v", err)
			return
		}
		t.Cleanup(func() { _ = other.waitClosed() })
	})
}

// dialMany makes conns connections to l, eight at a time, with rounds Receives each.
func dialMany(t *testing.T, f *Fixture, l fabric.Listener, conns, rounds int) []*endpoint {
	ends := make([]*endpoint, conns)
	errs := make(chan error, conns)
	slots := make(chan struct{}, 8) // the default of MaxStartingPerAddr is 16
	for i := range ends {
		ends[i] = newEndpoint(t, "dialled", f.DialLoop)
		ends[i].receives = rounds
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, err := f.dial(l, fabric.ConnOptions{}, ends[i])
			errs <- err
		}()
	}
	for range ends {
		if err := <-errs; err != nil {
			t.Fatalf("Dial: %v", err)
		}
	}
	t.Cleanup(func() {
		for _, e := range ends {
			e.close(nil)
		}
	})
	return ends
}
