package fabrictest

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of the abilities that fabric/abilities.go names. The test of an ability ends at once
// for a provider that lacks it. Each provider declares the abilities that it has, so that it
// cannot lose one unnoticed.

// ability asserts that v has the ability A, and logs when v lacks it.
func ability[A any](t *testing.T, name string, v any) (a A, ok bool) {
	t.Helper()
	if a, ok = v.(A); !ok {
		t.Logf("%T is no fabric.%s", v, name)
	}
	return a, ok
}

// listenTCP opens a TCP socket for a SocketProvider.
func listenTCP(t *testing.T) *net.TCPListener {
	t.Helper()
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// listenOn calls ListenOn.
func listenOn(t *testing.T, p fabric.SocketProvider, ln *net.TCPListener, incoming func(fabric.Incoming)) fabric.Listener {
	t.Helper()
	l, err := p.ListenOn(ln, NoLimits(), incoming)
	if err != nil {
		t.Fatalf("ListenOn: %v", err)
	}
	return l
}

func testListenOn(t *testing.T, f *Fixture) {
	sp, ok := ability[fabric.SocketProvider](t, "SocketProvider", f.Acceptor)
	if !ok {
		return
	}
	ln := listenTCP(t)
	if _, err := sp.ListenOn(listenTCP(t), fabric.ListenOptions{}, nil); err == nil {
		t.Error("ListenOn accepts options without limits")
	}
	at := ln.Addr().String()
	p := f.connect(t, pairOptions{open: func(incoming func(fabric.Incoming)) fabric.Listener {
		return listenOn(t, sp, ln, incoming)
	}})
	if got := p.listener.Addr().String(); got != at {
		t.Errorf("Addr = %s, the socket listens at %s", got, at)
	}
	p.exchange()
	if err := p.listener.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("the socket listens after the Listener that owns it was closed")
	}
}

// testCopied moves payload both ways. A provider may copy each octet at most once on
// each side.
func testCopied(t *testing.T, f *Fixture) {
	cc, ok := ability[fabric.CopyCounter](t, "CopyCounter", f.Dialer)
	if !ok {
		return
	}
	p := f.connect(t, pairOptions{})
	// The counter is up to date after the passes that copied.
	copied := func() int64 {
		p.dial.do(func() {})
		p.other.do(func() {})
		return cc.Copied()
	}
	const octets = len("message") * 2
	for range 8 {
		before := copied()
		p.exchange()
		if n := copied() - before; n < 0 || n > 2*int64(octets) {
			t.Errorf("%d octets copied for messages of %d in all", n, octets)
		}
	}
}

func testSetLimits(t *testing.T, f *Fixture) {
	accepted := make(chan *endpoint, 2)
	l := f.listen(t, fabric.ListenOptions{MaxConnections: 1}, func(in fabric.Incoming) {
		other := newEndpoint(t, "accepted", f.AcceptLoop)
		if _, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{}, other); err != nil {
			t.Errorf("Accept: %v", err)
		}
		accepted <- other
	})
	ls, ok := ability[fabric.LimitSetter](t, "LimitSetter", l)
	if !ok {
		return
	}
	dial := func(admitted bool, when string) {
		t.Helper()
		e := newEndpoint(t, "dialled", f.DialLoop)
		switch _, err := f.dial(l, fabric.ConnOptions{}, e); {
		case admitted && err != nil:
			t.Fatalf("Dial %s: %v", when, err)
		case admitted:
			e.send([]byte("first"))
			other := <-accepted
			other.waitMessages(1)
			t.Cleanup((&pair{dial: e, other: other}).end)
		case err == nil:
			t.Errorf("Dial %s succeeded", when)
		default:
			e.silent()
		}
	}
	dial(true, "of the first connection")
	dial(false, "of a second connection, with MaxConnections 1")
	ls.SetLimits(2, 16, 16)
	dial(true, "of a second connection, after SetLimits(2)")
	ls.SetLimits(1, 16, 16)
	dial(false, "of a third connection, after SetLimits(1)")
}

func testStopAccepting(t *testing.T, f *Fixture) {
	arrived, proceed := make(chan struct{}), make(chan struct{})
	accepted := make(chan error, 1)
	other := newEndpoint(t, "accepted", f.AcceptLoop)
	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		close(arrived)
		<-proceed
		_, err := in.Accept(context.Background(), f.AcceptLoop, fabric.ConnOptions{}, other)
		accepted <- err
	})
	as, ok := ability[fabric.AcceptStopper](t, "AcceptStopper", l)
	if !ok {
		return
	}
	dial := newEndpoint(t, "dialled", f.DialLoop)
	dialled := make(chan error, 1)
	go func() {
		_, err := f.dial(l, fabric.ConnOptions{}, dial)
		dialled <- err
	}()
	<-arrived
	if err := as.StopAccepting(); err != nil {
		t.Errorf("StopAccepting: %v", err)
	}
	late := newEndpoint(t, "late", f.DialLoop)
	if _, err := f.dial(l, fabric.ConnOptions{}, late); err == nil {
		t.Error("Dial succeeded after StopAccepting")
	}
	late.silent()
	close(proceed)
	for what, err := range map[string]error{"Accept": <-accepted, "Dial": <-dialled} {
		if err != nil {
			t.Fatalf("%s of a connection that was starting at StopAccepting: %v", what, err)
		}
	}
	if err := as.Close(); err != nil {
		t.Errorf("Close after StopAccepting: %v", err)
	}
	p := &pair{f: f, listener: l, dial: dial, other: other}
	t.Cleanup(p.end)
	p.exchange()
}

// testFile hands a listening socket from one Listener to another, as two processes do.
func testFile(t *testing.T, f *Fixture) {
	l := f.listen(t, fabric.ListenOptions{}, func(in fabric.Incoming) {
		t.Error("a connection reached the Listener that was closed")
		_ = in.Reject(nil)
	})
	sl, ok := ability[fabric.SocketListener](t, "SocketListener", l)
	if !ok {
		return
	}
	sp, ok := ability[fabric.SocketProvider](t, "SocketProvider", f.Acceptor)
	if !ok {
		return
	}
	file, err := sl.File()
	if err != nil {
		t.Fatalf("File: %v", err)
	}
	defer file.Close()
	if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_GETFL, 0); errno != 0 || flags&syscall.O_NONBLOCK == 0 {
		t.Errorf("the descriptor of a File has the flags %#x, %v; want O_NONBLOCK", flags, errno)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	ln, err := net.FileListener(file)
	if err != nil {
		t.Fatalf("the file is no listening socket: %v", err)
	}
	p := f.connect(t, pairOptions{open: func(incoming func(fabric.Incoming)) fabric.Listener {
		return listenOn(t, sp, ln.(*net.TCPListener), incoming)
	}})
	if p.listener.Addr() != l.Addr() {
		t.Errorf("the socket listens at %v, the first Listener did at %v", p.listener.Addr(), l.Addr())
	}
	p.exchange()
}
