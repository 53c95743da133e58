package eventloop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// Tasks run in the order in which each goroutine has posted them. None is lost, and all run
// on one goroutine.
func TestPostOrder(t *testing.T) {
	grp := startLoops(t, 1)
	l := grp.Loops()[0]
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
	grp := startLoops(t, 1)
	l := grp.Loops()[0]
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

func TestAttachRawEcho(t *testing.T) {
	t.Parallel()
	grp := startLoops(t, 2)
	near, far := testkit.TCPPair(t)
	near.SetWriteBuffer(128 << 10)
	r := testkit.NewEchoStream(t)
	want := near.RemoteAddr().String()
	if err := grp.Loops()[1].Attach(near, r); err != nil {
		t.Fatal(err)
	}
	if n := grp.Loops()[1].conns.Load(); n != 1 {
		t.Errorf("%d sockets on the loop", n)
	}
	msg := testkit.Pattern(8<<20, 9)
	go func() { far.Write(msg) }()
	testkit.Eventually(t, "writes come up short", func() bool {
		short := make(chan int)
		grp.Loops()[1].Post(loop.TaskFunc(func() { short <- r.Short }))
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
	grp.Loops()[1].Post(loop.TaskFunc(func() {
		if r.Socket.RemoteAddr().String() != want {
			t.Errorf("remote %v, want %v", r.Socket.RemoteAddr(), want)
		}
		mss <- r.Socket.MSS()
	}))
	if n := <-mss; n < 500 || n > 1<<16 {
		t.Errorf("MSS %d", n)
	}
	if r.Reads == 0 {
		t.Error("Socket.Read returned no octets")
	}
	far.CloseWrite()
	if err := <-r.Ended; err != io.EOF {
		t.Errorf("Detached(%v), want EOF", err)
	}
	testkit.Eventually(t, "off the loop", func() bool { return grp.Loops()[1].conns.Load() == 0 })
}

// Close, Abort, CloseWrite and the peer's RST end a socket, each in its way, when a task
// calls them.
func TestSocketEnds(t *testing.T) {
	grp := startLoops(t, 1)
	l := grp.Loops()[0]
	isNil := func(err error) bool { return err == nil }
	for _, tt := range []endTest{
		{"Close", func(s loop.Socket, _ *net.TCPConn) { s.Close(); s.Close() }, isNil, isNil},
		{"Abort", func(s loop.Socket, _ *net.TCPConn) { s.Abort() }, isNil, reset},
		{
			"RST", func(_ loop.Socket, far *net.TCPConn) { far.SetLinger(0); far.Close() },
			reset, func(err error) bool { return errors.Is(err, net.ErrClosed) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, l) })
	}
	t.Run("CloseWrite", func(t *testing.T) {
		near, far := testkit.TCPPair(t)
		r := testkit.NewEchoStream(t)
		if err := l.Attach(near, r); err != nil {
			t.Fatal(err)
		}
		l.Post(loop.TaskFunc(func() { r.Socket.CloseWrite() }))
		if n, err := io.Copy(io.Discard, far); n != 0 || err != nil {
			t.Errorf("the peer reads %d octets, %v", n, err)
		}
		far.Close()
		if err := <-r.Ended; err != io.EOF {
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
	near, far := testkit.TCPPair(t)
	r := testkit.NewEchoStream(t)
	if err := l.Attach(near, r); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	l.Post(loop.TaskFunc(func() {
		tt.do(r.Socket, far)
		select {
		case <-r.Ended:
			t.Error("Detached inside the call that asked for it")
		default:
		}
		close(done)
	}))
	<-done
	if err := <-r.Ended; !tt.detached(err) {
		t.Errorf("Detached(%v)", err)
	}
	if _, err := io.Copy(io.Discard, far); !tt.peer(err) {
		t.Errorf("the peer reads %v", err)
	}
}

func BenchmarkPost(b *testing.B) {
	grp := startLoops(b, 1)
	l := grp.Loops()[0]
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
	grp := startLoops(t, 1)
	l := grp.Loops()[0]
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
