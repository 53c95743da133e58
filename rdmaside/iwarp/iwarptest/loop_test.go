package iwarptest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// patience is how long a test waits for anything that must happen.
const patience = testkit.Patience

// A probe is a loop.Stream that records.
type probe struct {
	t        testing.TB
	sock     loop.Socket
	received func(b []byte)
	writable func()
	flushed  func()

	mu   sync.Mutex
	got  []byte
	over bool
	err  error
	more chan struct{}
}

func newProbe(t testing.TB) *probe { return &probe{t: t, more: make(chan struct{}, 1)} }

func (p *probe) signal() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *probe) Attached(s loop.Socket) { p.sock = s; p.signal() }

func (p *probe) Received(b []byte) {
	p.mu.Lock()
	p.got = append(p.got, b...)
	p.mu.Unlock()
	if p.received != nil {
		p.received(b)
	}
	p.signal()
}

func (p *probe) Writable() {
	if p.writable != nil {
		p.writable()
	}
}

func (p *probe) Flush() {
	if p.flushed != nil {
		p.flushed()
	}
}

func (p *probe) Detached(err error) {
	p.mu.Lock()
	if p.over {
		p.t.Error("Detached twice")
	}
	p.over, p.err = true, err
	p.mu.Unlock()
	p.signal()
}

func (p *probe) wait(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		good := ok()
		p.mu.Unlock()
		if good {
			return
		}
		select {
		case <-p.more:
		case <-deadline:
			p.t.Fatalf("waiting for %s", what)
		}
	}
}

func tcpPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// newLoop returns a loop that ends with the test.
func newLoop(t testing.TB) *Loop {
	l := NewLoop()
	t.Cleanup(l.Stop)
	return l
}

// TestLoopWrites writes many MiB to a socket that is full most of the time, over TCP and
// over a pipe, in slices of all sizes, of which there are more than one writev accepts.
func TestLoopWrites(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		t.Run(kind, func(t *testing.T) {
			l := newLoop(t)
			var a, b net.Conn
			if kind == "tcp" {
				a, b = tcpPair(t)
			} else {
				a, b = net.Pipe()
			}
			p := newProbe(t)
			if err := l.Attach(a, p); err != nil {
				t.Fatal(err)
			}
			data := testkit.Pattern(8<<20, 1)
			var bufs [][]byte
			for at, n := 0, 1; at < len(data); n = n*3%5003 + 1 {
				k := min(n, len(data)-at)
				bufs = append(bufs, data[at:at+k], nil)
				at += k
			}
			write := func() {
				for len(bufs) > 0 {
					n, err := p.sock.Writev(bufs)
					if err != nil {
						t.Error(err)
						return
					}
					for n > 0 || len(bufs) > 0 && len(bufs[0]) == 0 {
						k := min(n, len(bufs[0]))
						if k < len(bufs[0]) {
							bufs[0] = bufs[0][k:]
							break
						}
						n -= k
						bufs = bufs[1:]
					}
					if len(bufs) > 0 {
						return // Writable will follow
					}
				}
				p.sock.Close()
			}
			p.writable = write
			l.Do(write)
			got, err := io.ReadAll(b)
			if err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Error(err)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("the peer read %d octets, not the %d that were written", len(got), len(data))
			}
			b.Close()
			p.wait("Detached", func() bool { return p.over })
			if p.err != nil {
				t.Errorf("Detached(%v) after Close", p.err)
			}
		})
	}
}

// TestLoopRead checks that Socket.Read reads the octets behind those of Received, without
// blocking.
func TestLoopRead(t *testing.T) {
	l := newLoop(t)
	a, b := tcpPair(t)
	p := newProbe(t)
	var direct []byte
	p.received = func([]byte) {
		buf := make([]byte, 1<<16)
		for {
			n, err := p.sock.Read(buf)
			if err != nil {
				t.Error(err)
			}
			if n == 0 {
				return
			}
			p.mu.Lock()
			p.got = append(p.got, buf[:n]...)
			direct = append(direct, buf[:n]...)
			p.mu.Unlock()
		}
	}
	if err := l.Attach(a, p); err != nil {
		t.Fatal(err)
	}
	data := testkit.Pattern(4<<20, 2)
	if _, err := b.Write(data); err != nil {
		t.Fatal(err)
	}
	p.wait("all of it", func() bool { return len(p.got) == len(data) })
	if !bytes.Equal(p.got, data) {
		t.Errorf("%d octets were read, not the %d that were written", len(p.got), len(data))
	}
	if len(direct) == 0 {
		t.Error("nothing was read directly")
	}
	l.Do(func() {
		if n := p.sock.MSS(); n < 500 || n > 1<<16 {
			t.Errorf("MSS %d", n)
		}
		if p.sock.LocalAddr().Port() == 0 || p.sock.RemoteAddr() != addrPort(b.LocalAddr()) {
			t.Errorf("%v, %v", p.sock.LocalAddr(), p.sock.RemoteAddr())
		}
	})
}

// TestLoopEnds checks the error of Detached for each way in which a socket ends.
func TestLoopEnds(t *testing.T) {
	for _, v := range []struct {
		name string
		end  func(l *Loop, p *probe, peer *net.TCPConn)
		want error
	}{
		{"FIN", func(_ *Loop, _ *probe, peer *net.TCPConn) { _ = peer.CloseWrite() }, io.EOF},
		{"Close", func(l *Loop, p *probe, _ *net.TCPConn) { l.Do(func() { p.sock.Close(); p.sock.Close() }) }, nil},
		{"Abort", func(l *Loop, p *probe, _ *net.TCPConn) { l.Do(func() { p.sock.Abort() }) }, nil},
		{"CloseWrite", func(l *Loop, p *probe, peer *net.TCPConn) {
			l.Do(func() {
				if err := p.sock.CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("peer reads %v", err)
			}
			_, _ = peer.Write([]byte("still heard"))
			p.wait("octets after CloseWrite", func() bool { return bytes.Equal(p.got, []byte("still heard")) })
			peer.Close()
		}, io.EOF},
		{"Stop", func(l *Loop, _ *probe, _ *net.TCPConn) { l.Stop() }, loop.ErrStopped},
	} {
		t.Run(v.name, func(t *testing.T) {
			l := newLoop(t)
			a, b := tcpPair(t)
			p := newProbe(t)
			if err := l.Attach(a, p); err != nil {
				t.Fatal(err)
			}
			v.end(l, p, b.(*net.TCPConn))
			p.wait("Detached", func() bool { return p.over })
			if !errors.Is(p.err, v.want) || v.want == nil && p.err != nil {
				t.Errorf("Detached(%v), want %v", p.err, v.want)
			}
			if _, err := a.Write([]byte{1}); err == nil {
				t.Error("the socket is open still")
			}
		})
	}
}

// TestLoopFlush checks that Flush is called once in a pass, however often FlushSoon was.
func TestLoopFlush(t *testing.T) {
	l := newLoop(t)
	a, _ := tcpPair(t)
	p := newProbe(t)
	n := 0
	again := 10
	p.flushed = func() {
		n++
		if again > 0 { // asking inside Flush is for another one
			again--
			p.sock.FlushSoon()
		}
	}
	if err := l.Attach(a, p); err != nil {
		t.Fatal(err)
	}
	l.Do(func() {
		for range 5 {
			p.sock.FlushSoon()
		}
		if n != 0 {
			t.Error("flushed at once")
		}
	})
	testkit.Eventually(t, "Flush is called 11 times", func() (ok bool) {
		l.Do(func() { ok = n == 11 })
		return ok
	})
}

// TestLoopPost keeps each poster's order and does not allocate.
func TestLoopPost(t *testing.T) {
	l := newLoop(t)
	const posters, each = 4, 1000
	var wg sync.WaitGroup
	next := make([]int, posters)
	for i := range posters {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := range each {
				l.Post(loop.TaskFunc(func() {
					if next[i] != k {
						t.Errorf("poster %d: task %d ran after %d", i, k, next[i])
					}
					next[i]++
				}))
			}
		}()
	}
	wg.Wait()
	l.Do(func() {
		for i, n := range next {
			if n != each {
				t.Errorf("poster %d: %d tasks ran", i, n)
			}
		}
	})
	task := &countTask{}
	if n := testing.AllocsPerRun(1000, func() { l.Post(task) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	l.Stop()
	l.Post(task) // dropped
}

type countTask struct{ n int }

func (c *countTask) Run() { c.n++ }
