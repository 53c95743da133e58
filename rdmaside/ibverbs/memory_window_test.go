//go:build ibverbs

package ibverbs

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// NoObjects waits until all objects of the stand-in are gone.
func NoObjects(t testing.TB) {
	t.Helper()
	if !testkit.Settles(patience, func() bool { return standIn.live.Load() == 0 }) {
		t.Fatalf("%d objects of rdma-core are left", standIn.live.Load())
	}
}

// A windowCase has a connection over the stand-in, whose driver is mlx5_core, and both its ends.
type windowCase struct {
	t           *testing.T
	p           *Provider
	acceptor    fabric.Provider
	loop        *fabrictest.Loop
	listener    fabric.Listener
	accepted    chan fabric.Conn
	mem         []byte
	log         lockedText
	dial, other *windowEnd
	from        fabric.Conn // of dial
}

// A windowEnd is a recorder that also keeps the completions of invalidations.
type windowEnd struct {
	recorder
	t            *testing.T
	invalidatedc chan fabric.Completion
	toldc        chan fabric.Handle
}

func newWindowEnd(t *testing.T) *windowEnd {
	return &windowEnd{*newRecorder(), t, make(chan fabric.Completion, 8), make(chan fabric.Handle, 8)}
}

func (e *windowEnd) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		switch {
		case c.Op == bindWork:
			e.t.Errorf("the completion of a bind: %+v", c)
		case c.Op == fabric.OpInvalidate:
			e.invalidatedc <- c
		case c.Op == fabric.OpReceive && c.Err == nil:
			e.toldc <- c.Invalidated
		}
	}
}

func newWindowCase(t *testing.T, e Exposure) *windowCase {
	t.Helper()
	if standIn == nil {
		t.Skip("the tests run on a device")
	}
	Pretend(t, "mlx5_core")
	wc := &windowCase{t: t, loop: fabrictest.NewLoop(), accepted: make(chan fabric.Conn, 1), mem: make([]byte, 1<<16)}
	t.Cleanup(func() { NoObjects(t); wc.loop.Stop() })
	p, err := New(Options{DialTimeout: patience, AcceptTimeout: patience, CloseTimeout: 50 * time.Millisecond, Exposure: e, Memory: [][]byte{wc.mem}, Log: zerolog.New(&wc.log)})
	if err != nil {
		t.Fatal(err)
	}
	wc.p = p.(*Provider)
	acceptor, err := New(Options{DialTimeout: patience, AcceptTimeout: patience, Exposure: ExposeRegistration})
	if err != nil {
		t.Fatal(err)
	}
	wc.acceptor = acceptor
	wc.listen("127.0.0.1:0")
	t.Cleanup(func() { setFault(noFault, 0) })
	return wc
}

// listen begins to listen at another address of the device, to which connect connects from then on.
func (wc *windowCase) listen(addr string) {
	wc.t.Helper()
	l, err := wc.acceptor.Listen(addr, fabrictest.NoLimits(), func(in fabric.Incoming) {
		wc.other = newWindowEnd(wc.t)
		c, err := in.Accept(context.Background(), wc.loop, fabric.ConnOptions{Sends: 8, Receives: 4}, wc.other)
		if err != nil {
			wc.t.Errorf("Accept: %v", err)
		}
		wc.accepted <- c
	})
	if err != nil {
		wc.t.Fatal(err)
	}
	wc.t.Cleanup(func() { l.Close() })
	wc.listener = l
}

// connect dials.
func (wc *windowCase) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wc.dial = newWindowEnd(wc.t)
	c, err := wc.p.Dial(ctx, wc.loop, wc.listener.Addr().String(), fabric.ConnOptions{Sends: 8, Receives: 4}, wc.dial)
	wc.from = c
	return err
}

// mustConnect dials, and checks whether handles are windows.
func (wc *windowCase) mustConnect(windows bool) {
	wc.t.Helper()
	if err := wc.connect(); err != nil {
		wc.t.Fatalf("Dial: %v", err)
	}
	if got := fabric.InvalidatesRemotely(wc.from); got != windows {
		wc.t.Errorf("the peer may invalidate handles: %v, want %v", got, windows)
	}
}

func (wc *windowCase) do(f func()) {
	done := make(chan struct{})
	wc.loop.Post(loop.TaskFunc(func() { defer close(done); f() }))
	<-done
}

// register registers memory for the peer.
func (wc *windowCase) register() (r fabric.Region) {
	wc.t.Helper()
	wc.do(func() {
		var err error
		if r, err = wc.from.Register(wc.mem[:64], fabric.RemoteWrite); err != nil {
			wc.t.Errorf("Register: %v", err)
		}
		wc.from.Flush()
	})
	return r
}

func (wc *windowCase) invalidate(h fabric.Handle) {
	wc.t.Helper()
	wc.do(func() {
		if done, err := wc.from.Invalidate(7, h); done || err != nil {
			wc.t.Errorf("Invalidate: %v, %v", done, err)
		}
		wc.from.Flush()
	})
}

// end waits for the end of the connection. It closes the connection if want is overText.
func (wc *windowCase) end(want string) {
	wc.t.Helper()
	if want == overText {
		wc.do(func() { wc.from.Close(errors.New(overText)) })
	}
	waitClosed(wc.t, &wc.dial.recorder, want)
	<-wc.accepted
	<-wc.other.closedc
}

const overText = "test over"

// TestWindowFaults checks what becomes of connections when windows fail: they end, and nothing of them
// is left. With auto, the next ones register memory: all of them if it was the device that failed, and
// those to the same server if that may have been the cause.
func TestWindowFaults(t *testing.T) {
	const bindError = 6 // IBV_WC_MW_BIND_ERR
	for _, e := range []Exposure{ExposeAuto, ExposeWindows} {
		again := e == ExposeWindows // later connections have windows again
		t.Run(e.String()+"/bind", func(t *testing.T) {
			wc := newWindowCase(t, e)
			wc.mustConnect(true)
			setFault(faultBind, bindError)
			wc.register()
			wc.end("(status 6,")
			setFault(noFault, 0)
			wc.mustConnect(again)
			wc.register()
			wc.end(overText)
			wc.listen("[::1]:0")
			wc.mustConnect(again) // it is the device that fails, whoever the server is
			wc.end(overText)
			if n := wc.log.lines("memory windows fail on this device"); n == 1 == again {
				t.Errorf("%d lines say that windows fail", n)
			}
		})
		t.Run(e.String()+"/untold", func(t *testing.T) {
			wc := newWindowCase(t, e)
			wc.mustConnect(true)
			r := wc.register()
			setFault(faultUntold, 1)
			peer := <-wc.accepted
			wc.accepted <- peer
			wc.do(func() {
				_ = peer.PostSend(1, fabric.Send{Parts: [][]byte{[]byte("hello")}, Invalidate: r.Handle})
				peer.Flush()
			})
			if h := <-wc.dial.toldc; h != 0 {
				t.Errorf("told of %#x", h)
			}
			wc.do(func() {
				for id := range uint64(2) { // the second waits for the Work Request of the first
					if done, err := wc.from.Invalidate(7+id, r.Handle); done || err != nil {
						t.Errorf("Invalidate: %v, %v", done, err)
					}
				}
				wc.from.Flush()
			})
			for range 2 {
				if c := <-wc.dial.invalidatedc; !errors.Is(c.Err, fabric.ErrFlushed) {
					t.Errorf("the completion of %d has the error %v", c.ID, c.Err)
				}
			}
			wc.end("(status 2,") // IBV_WC_LOC_QP_OP_ERR
			wc.mustConnect(again)
			wc.end(overText)
			if n := wc.log.lines("a memory window could not be invalidated", `"server":"127.0.0.1"`); n == 1 == again {
				t.Errorf("%d lines say that the invalidation failed", n)
			}
			wc.listen("[::1]:0")
			wc.mustConnect(true) // a server that may have caused this costs the others nothing
			wc.end(overText)
		})
	}
	t.Run("auto/alloc", func(t *testing.T) {
		wc := newWindowCase(t, ExposeAuto)
		setFault(faultWindow, uint32(syscall.ENOMEM))
		wc.mustConnect(false)
		wc.register()
		wc.end(overText)
	})
	t.Run("windows/alloc", func(t *testing.T) {
		wc := newWindowCase(t, ExposeWindows)
		setFault(faultWindow, uint32(syscall.ENOMEM))
		if err := wc.connect(); !errors.Is(err, fabric.ErrLimit) || !strings.Contains(err.Error(), "memory window") {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("windows/alloc later", func(t *testing.T) {
		wc := newWindowCase(t, ExposeWindows)
		wc.mustConnect(true)
		setFault(faultWindow, uint32(syscall.ENOMEM))
		r := wc.register() // the one that Dial has made
		wc.do(func() {
			if _, err := wc.from.Register(wc.mem[:64], fabric.RemoteWrite); !errors.Is(err, fabric.ErrLimit) {
				t.Errorf("Register without a free window: %v", err)
			}
		})
		wc.invalidate(r.Handle)
		if c := <-wc.dial.invalidatedc; c.Err != nil {
			t.Errorf("Invalidate completed: %v", c.Err)
		}
		if again := wc.register(); again.Handle == r.Handle {
			t.Errorf("handle %#x again", r.Handle)
		}
		wc.end(overText)
	})
	t.Run("windows/distrusted", func(t *testing.T) {
		wc := newWindowCase(t, ExposeWindows)
		Pretend(t, "rxe")
		for range 2 {
			wc.mustConnect(false) // the peer is not let
			r := wc.register()
			wc.invalidate(r.Handle)
			if c := <-wc.dial.invalidatedc; c.Err != nil {
				t.Errorf("Invalidate completed: %v", c.Err)
			}
			wc.end(overText)
		}
		if n := wc.log.lines("it is not known that this driver checks", `"driver":"rxe"`); n != 1 {
			t.Errorf("%d lines warn of the driver", n)
		}
	})
	t.Run("windows/none", func(t *testing.T) {
		wc := newWindowCase(t, ExposeWindows)
		standIn.windows.Store(noWindows)
		if err := wc.connect(); !errors.Is(err, errNoWindows) {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("lost invalidation", func(t *testing.T) {
		wc := newWindowCase(t, ExposeWindows)
		wc.mustConnect(true)
		r := wc.register()
		setFault(faultInvalidate, 1)
		wc.invalidate(r.Handle)
		wc.end(overText)
		if c := <-wc.dial.invalidatedc; !errors.Is(c.Err, fabric.ErrFlushed) {
			t.Errorf("the completion has the error %v", c.Err)
		}
	})
}

// TestDeregisterFails checks that memory that could not be deregistered is not forgotten: the end of the
// connection tries again.
func TestDeregisterFails(t *testing.T) {
	wc := newWindowCase(t, ExposeRegistration)
	wc.mustConnect(false)
	r := wc.register()
	setFault(faultDeregister, uint32(syscall.EIO))
	wc.do(func() {
		if done, err := wc.from.Invalidate(7, r.Handle); done || !errors.Is(err, syscall.EIO) {
			t.Errorf("Invalidate: %v, %v", done, err)
		}
	})
	setFault(noFault, 0)
	wc.end(overText) // newWindowCase checks that no object is left
}

// TestWindowsClose checks that an orderly close waits for invalidations.
func TestWindowsClose(t *testing.T) {
	wc := newWindowCase(t, ExposeWindows)
	for _, lost := range []bool{false, true} {
		wc.mustConnect(true)
		r := wc.register()
		want := ""
		if lost {
			setFault(faultInvalidate, 1)
			want = errCloseTimeout.Error()
		}
		wc.invalidate(r.Handle)
		wc.do(func() { wc.from.Close(nil) })
		wc.end(want)
		if c := <-wc.dial.invalidatedc; errors.Is(c.Err, fabric.ErrFlushed) != lost {
			t.Errorf("lost %v: the invalidation completed: %v", lost, c.Err)
		}
	}
}

// TestWindowsAllocate checks that handles cost no memory of Go and no object of the device in the long
// run, that a handle is not given again soon, and that one does not tell the next.
func TestWindowsAllocate(t *testing.T) {
	wc := newWindowCase(t, ExposeWindows)
	wc.mustConnect(true)
	c := wc.from.(*conn)
	seen, steps := make(map[fabric.Handle]int), make(map[fabric.Handle]int)
	var previous fabric.Handle
	n := 0
	cycle := func() {
		r, err := c.Register(wc.mem[:64], fabric.RemoteWrite)
		if err == nil {
			_, err = c.Invalidate(uint64(n&1), r.Handle)
		}
		if err != nil {
			t.Errorf("cycle %d: %v", n, err)
			return
		}
		c.Flush()
		c.poll()
		if last, ok := seen[r.Handle]; ok && n-last < 1000 {
			t.Errorf("handle %#x of cycle %d again in cycle %d", r.Handle, last, n)
		}
		seen[r.Handle] = n
		steps[r.Handle-previous]++
		previous = r.Handle
		n++
		select {
		case <-wc.dial.invalidatedc:
		default:
			t.Errorf("no completion of cycle %d", n)
		}
	}
	wc.do(func() {
		if _, err := c.Register(wc.mem[:64], fabric.RemoteWrite); err != nil {
			t.Errorf("Register: %v", err)
		}
		c.Flush()
		if c.poll(); c.done != c.given {
			t.Errorf("%d Work Requests were given to the device, and %d are known to be done", c.given, c.done)
		}
		for range 70000 { // all keys that the windows have
			cycle()
		}
		for step, times := range steps {
			if times > n/100 {
				t.Errorf("%d of %d handles are %#x more than the one before", times, n, step)
			}
		}
		before := standIn.live.Load()
		if got := testing.AllocsPerRun(2000, cycle); got != 0 {
			t.Errorf("a handle allocates %v times", got)
		}
		if after := standIn.live.Load(); after != before {
			t.Errorf("%d objects of the device, and %d later", before, after)
		}
	})
	wc.end(overText)
}
