package tcpframe

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestStartRaisesGOMAXPROCS(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 2})
	if n := runtime.GOMAXPROCS(0); n < 3 {
		t.Errorf("GOMAXPROCS is %d with 2 loops: no P is left for the runtime's poller", n)
	}
	if len(e.Loops()) != 2 || e.Loops()[1].Index() != 1 {
		t.Errorf("loops %v", e.Loops())
	}
}

// Tasks run in the order in which each goroutine has posted them. None is lost, and all run
// on one goroutine.
func TestPostOrder(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := e.Loops()[0]
	const posters, each = 8, 5000
	next := make([]int, posters)
	var wg, ran sync.WaitGroup
	ran.Add(posters * each)
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				l.Post(loop.TaskFunc(func() { // not synchronised: the race detector checks that one goroutine runs it
					if next[p] != i {
						t.Errorf("poster %d: task %d ran as number %d", p, i, next[p])
					}
					next[p]++
					ran.Done()
				}))
			}
		})
	}
	wg.Wait()
	ran.Wait()
}

type countTask struct {
	n    int
	done chan struct{}
}

func (c *countTask) Run() {
	if c.n--; c.n == 0 {
		c.done <- struct{}{}
	}
}

func TestPostAllocs(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1, tick: time.Hour})
	l := e.Loops()[0]
	c := &countTask{done: make(chan struct{}, 1)}
	if a := testing.AllocsPerRun(500, func() {
		c.n = 10
		for range 10 {
			l.Post(c)
		}
		<-c.done
	}); a >= 1 {
		t.Errorf("%v allocs per ten posts and their wake-up, want 0", a)
	}
}

// A task that posts itself alternates with the sockets.
func TestSelfPostIsFair(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	var stop atomic.Bool
	ended := make(chan struct{})
	var again loop.TaskFunc
	again = func() {
		if stop.Load() {
			close(ended)
			return
		}
		e.Loops()[0].Post(again)
	}
	e.Loops()[0].Post(again)
	p := dialPeer(t, l)
	for range 100 {
		p.send(fragment(true, pattern(100, 0)))
		p.readRecord()
	}
	stop.Store(true)
	<-ended
}

// A rawEcho echoes a stream of octets and queues those that the kernel does not take.
type rawEcho struct {
	t        *testing.T
	s        loop.Socket
	queue    [][]byte
	queued   int
	short    int
	flushes  int
	reads    int
	detached chan error
}

func (r *rawEcho) Attached(s loop.Socket) { r.s = s }

func (r *rawEcho) Received(b []byte) {
	r.put(b)
	buf := make([]byte, 100_000)
	for {
		n, err := r.s.Read(buf)
		if n == 0 || err != nil {
			break
		}
		r.reads++
		r.put(buf[:n])
	}
	r.s.FlushSoon()
	r.s.FlushSoon()
}

func (r *rawEcho) put(b []byte) {
	for len(b) > 0 {
		n := min(len(b), 777)
		r.queue = append(r.queue, bytes.Clone(b[:n]))
		r.queued += n
		b = b[n:]
	}
}

func (r *rawEcho) Writable() { r.s.FlushSoon() }

func (r *rawEcho) Flush() {
	r.flushes++
	n, err := r.s.Writev(r.queue)
	if err != nil {
		r.s.Close()
		return
	}
	if n < r.queued {
		r.short++
	}
	r.queued -= n
	for len(r.queue) > 0 && n >= len(r.queue[0]) {
		n -= len(r.queue[0])
		r.queue = r.queue[1:]
	}
	if n > 0 {
		r.queue[0] = r.queue[0][n:]
	}
}

func (r *rawEcho) Detached(err error) {
	if _, e := r.s.Writev([][]byte{{1}}); !errors.Is(e, errClosed) {
		r.t.Errorf("Writev in Detached: %v", e)
	}
	r.s.FlushSoon()
	r.s.Close()
	r.detached <- err
}

// tcpPair returns both ends of a loopback connection.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	c.SetDeadline(time.Now().Add(peerLasts))
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

func TestAttachRawEcho(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	near, far := tcpPair(t)
	near.SetWriteBuffer(128 << 10)
	r := &rawEcho{t: t, detached: make(chan error, 1)}
	want := near.RemoteAddr().String()
	if err := e.Loops()[1].Attach(near, r); err != nil {
		t.Fatal(err)
	}
	if n := e.Loops()[1].conns.Load(); n != 1 {
		t.Errorf("%d sockets on the loop", n)
	}
	msg := pattern(8<<20, 9)
	go func() { far.Write(msg) }()
	testkit.Eventually(t, "writes come up short", func() bool {
		short := make(chan int)
		e.Loops()[1].Post(loop.TaskFunc(func() { short <- r.short }))
		return <-short > 0
	})
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(far, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, msg) {
		t.Error("stream changed")
	}
	mss := make(chan int)
	e.Loops()[1].Post(loop.TaskFunc(func() {
		if r.s.RemoteAddr().String() != want {
			t.Errorf("remote %v, want %v", r.s.RemoteAddr(), want)
		}
		mss <- r.s.MSS()
	}))
	if n := <-mss; n < 500 || n > 1<<16 {
		t.Errorf("MSS %d", n)
	}
	if r.reads == 0 {
		t.Error("Socket.Read returned no octets")
	}
	far.CloseWrite()
	if err := <-r.detached; err != io.EOF {
		t.Errorf("Detached(%v), want EOF", err)
	}
	testkit.Eventually(t, "off the loop", func() bool { return e.Loops()[1].conns.Load() == 0 })
}

// Close, Abort, CloseWrite and the peer's RST end a socket, each in its way, when a task
// calls them.
func TestSocketEnds(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := e.Loops()[0]
	isNil := func(err error) bool { return err == nil }
	for _, tt := range []endTest{
		{"Close", func(s loop.Socket, _ *net.TCPConn) { s.Close(); s.Close() }, isNil, isNil},
		{"Abort", func(s loop.Socket, _ *net.TCPConn) { s.Abort() }, isNil, isReset},
		{
			"RST", func(_ loop.Socket, far *net.TCPConn) { far.SetLinger(0); far.Close() },
			isReset, func(err error) bool { return errors.Is(err, net.ErrClosed) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, l) })
	}
	t.Run("CloseWrite", func(t *testing.T) {
		near, far := tcpPair(t)
		r := &rawEcho{t: t, detached: make(chan error, 1)}
		if err := l.Attach(near, r); err != nil {
			t.Fatal(err)
		}
		l.Post(loop.TaskFunc(func() { r.s.CloseWrite() }))
		if n, err := io.Copy(io.Discard, far); n != 0 || err != nil {
			t.Errorf("the peer reads %d octets, %v", n, err)
		}
		far.Close()
		if err := <-r.detached; err != io.EOF {
			t.Errorf("Detached(%v), want EOF", err)
		}
	})
}

// An endTest ends a socket by do, which runs on the loop.
type endTest struct {
	name     string
	do       func(loop.Socket, *net.TCPConn)
	detached func(error) bool // whether Detached may get the error
	peer     func(error) bool // whether the peer may read the error
}

func (tt endTest) run(t *testing.T, l *Loop) {
	near, far := tcpPair(t)
	r := &rawEcho{t: t, detached: make(chan error, 1)}
	if err := l.Attach(near, r); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	l.Post(loop.TaskFunc(func() {
		tt.do(r.s, far)
		select {
		case <-r.detached:
			t.Error("Detached inside the call that asked for it")
		default:
		}
		close(done)
	}))
	<-done
	if err := <-r.detached; !tt.detached(err) {
		t.Errorf("Detached(%v)", err)
	}
	if _, err := io.Copy(io.Discard, far); !tt.peer(err) {
		t.Errorf("the peer reads %v", err)
	}
}

// Sockets that close each other inside callbacks never get each other's events, although
// new sockets get their descriptor numbers at once.
func TestCloseEachOther(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	var mu sync.Mutex
	var socks []*Conn
	var ended atomic.Int32
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler {
		r := newRecorder()
		r.opened = func(c *Conn) { mu.Lock(); socks = append(socks, c); mu.Unlock() }
		r.record = func(c *Conn, b Buffer) {
			c.Send([][]byte{b.Bytes()}, b)
			mu.Lock()
			all := socks
			socks = nil
			mu.Unlock()
			for _, o := range all {
				if o != c {
					o.Abort(nil)
				}
			}
			mu.Lock()
			socks = append(socks, c)
			mu.Unlock()
		}
		r.closed = func(*Conn, error) { ended.Add(1) }
		return r
	})
	const clients = 300
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range clients / 4 {
				c, err := net.Dial("tcp", l.Addr().String())
				if isReset(err) {
					continue // aborted before connect returned
				} else if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(peerLasts))
				c.Write(fragment(true, pattern(100, 0)))
				if b, err := readRecord(c, nil); err == nil && !bytes.Equal(b, pattern(100, 0)) {
					t.Error("octets of another connection")
				} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Error("a connection hangs")
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	testkit.Eventually(t, "every connection ends once", func() bool { return ended.Load() == clients })
}

func BenchmarkPost(b *testing.B) {
	e := startEngine(b, EngineOptions{Loops: 1, tick: time.Hour})
	l := e.Loops()[0]
	b.Run("round trip", func(b *testing.B) {
		c := &countTask{done: make(chan struct{}, 1)}
		b.ReportAllocs()
		for b.Loop() {
			c.n = 1
			l.Post(c)
			<-c.done
		}
	})
	b.Run("batch of 64", func(b *testing.B) {
		c := &countTask{done: make(chan struct{}, 1)}
		b.ReportAllocs()
		for b.Loop() {
			c.n = 64
			for range 64 {
				l.Post(c)
			}
			<-c.done
		}
	})
}

// TestFinish: what Finish queues runs in the same pass, after all that the pass received and
// before the sockets are flushed, however late in the pass it was queued.
func TestFinish(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := e.Loops()[0]
	passes := make(chan []uint64)
	l.Post(loop.TaskFunc(func() {
		var order []uint64
		ran := func() { order = append(order, l.pass) }
		l.Finish(loop.TaskFunc(func() {
			ran()
			l.Finish(loop.TaskFunc(ran))
			l.Post(loop.TaskFunc(func() {
				l.Finish(loop.TaskFunc(func() {
					ran()
					passes <- append(order, l.pass)
				}))
			}))
		}))
		if len(order) > 0 {
			t.Error("Finish ran the task at once")
		}
	}))
	got := <-passes
	if len(got) != 4 || got[0] != got[3] || got[1] != got[3] || got[2] != got[3] {
		t.Errorf("the tasks ran in the passes %v, want three in one", got)
	}
}
