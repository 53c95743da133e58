package iwarp

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }

const patience = testkit.Patience

// A user is a fabric.Handler that records its calls. Its conn methods run on
// the loop through do.
type user struct {
	t    testing.TB
	loop *iwarptest.Loop
	// Called on the loop; nil does nothing.
	setup     func(fabric.Conn) error
	completed func([]fabric.Completion)
	closed    func()

	mu   sync.Mutex
	c    fabric.Conn
	cs   []fabric.Completion
	over bool
	err  error
	more chan struct{}
}

func newUser(t testing.TB, on *iwarptest.Loop) *user {
	return &user{t: t, loop: on, more: make(chan struct{}, 1)}
}

func (u *user) Setup(c fabric.Conn) error {
	u.mu.Lock()
	u.c = c
	u.mu.Unlock()
	defer u.signal()
	if u.setup != nil {
		return u.setup(c)
	}
	return nil
}

func (u *user) Completed(cs []fabric.Completion) {
	if u.completed != nil {
		u.completed(cs)
	}
	u.mu.Lock()
	if u.over {
		u.t.Error("Completed after Closed")
	}
	u.cs = append(u.cs, cs...)
	u.mu.Unlock()
	u.signal()
}

func (u *user) Closed(err error) {
	if u.closed != nil {
		u.closed()
	}
	u.mu.Lock()
	if u.over {
		u.t.Error("Closed twice")
	}
	u.over, u.err = true, err
	u.mu.Unlock()
	u.signal()
}

func (u *user) signal() {
	select {
	case u.more <- struct{}{}:
	default:
	}
}

// do runs f on the loop.
func (u *user) do(f func(c fabric.Conn)) {
	u.t.Helper()
	done := make(chan struct{})
	u.loop.Post(loop.TaskFunc(func() {
		defer close(done)
		f(u.c)
	}))
	select {
	case <-done:
	case <-time.After(patience):
		u.t.Fatal("the loop hangs")
	}
}

// wait waits until ok holds; it is called with the lock held.
func (u *user) wait(what string, ok func() bool) {
	u.t.Helper()
	deadline := time.After(patience)
	for {
		u.mu.Lock()
		good := ok()
		u.mu.Unlock()
		if good {
			return
		}
		select {
		case <-u.more:
		case <-deadline:
			u.mu.Lock()
			defer u.mu.Unlock()
			u.t.Fatalf("waiting for %s: completions %+v, over %v, err %v", what, u.cs, u.over, u.err)
		}
	}
}

// completion waits for the completion with this id and removes it.
func (u *user) completion(id uint64) (c fabric.Completion) {
	u.t.Helper()
	u.wait(fmt.Sprintf("completion %d", id), func() bool {
		for i := range u.cs {
			if u.cs[i].ID == id {
				c = u.cs[i]
				u.cs = append(u.cs[:i], u.cs[i+1:]...)
				return true
			}
		}
		return false
	})
	return c
}

// good waits for a completion without an error.
func (u *user) good(id uint64) fabric.Completion {
	u.t.Helper()
	c := u.completion(id)
	if c.Err != nil {
		u.t.Fatalf("completion %d: %v", id, c.Err)
	}
	return c
}

// left returns the completions that the test has not asked for.
func (u *user) left() []fabric.Completion {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]fabric.Completion(nil), u.cs...)
}

// ended waits for Closed.
func (u *user) ended() error {
	u.t.Helper()
	u.wait("Closed", func() bool { return u.over })
	return u.err
}

// receives posts n Receives of size octets in Setup, with ids from 1.
func (u *user) receives(n, size int) [][]byte {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	u.setup = func(c fabric.Conn) error {
		for i, b := range bufs {
			if err := c.PostReceive(uint64(i+1), b); err != nil {
				return err
			}
		}
		return nil
	}
	return bufs
}

func (u *user) register(buf []byte, a fabric.Access) (r fabric.Region) {
	u.t.Helper()
	u.do(func(c fabric.Conn) {
		var err error
		if r, err = c.Register(buf, a); err != nil {
			u.t.Error(err)
		}
	})
	return r
}

// newProvider returns a Provider with o. Timeouts that must be set and are not get values
// that do not matter to a test.
func newProvider(o Options) *Provider {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.DialTimeout, 10*time.Second)
	set(&o.AcceptTimeout, 5*time.Second)
	set(&o.ProgressTimeout, 30*time.Second)
	p, err := New(o)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}

// withLimits sets the limits of o that are not set.
func withLimits(o fabric.ListenOptions) fabric.ListenOptions {
	set := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&o.MaxConnections, 1024)
	set(&o.MaxStarting, 128)
	set(&o.MaxStartingPerAddr, 16)
	return o
}

// newLoop returns a loop that ends with the test.
func newLoop(t testing.TB) *iwarptest.Loop {
	l := iwarptest.NewLoop()
	t.Cleanup(l.Stop)
	return l
}

// listen starts a listener that accepts with o and hands out u.
func listen(t testing.TB, p *Provider, lo fabric.ListenOptions, o fabric.ConnOptions, accept func(fabric.Incoming) (loop.Loop, fabric.Handler)) string {
	t.Helper()
	l, err := p.Listen("127.0.0.1:0", withLimits(lo), func(in fabric.Incoming) {
		on, h := accept(in)
		if _, err := in.Accept(context.Background(), on, o, h); err != nil {
			t.Logf("accept: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// connect makes a connection between a and b over loopback, a dialing.
func connect(t testing.TB, p *Provider, a, b *user, ao, bo fabric.ConnOptions) {
	t.Helper()
	addr := listen(t, p, fabric.ListenOptions{}, bo, func(fabric.Incoming) (loop.Loop, fabric.Handler) { return b.loop, b })
	if _, err := p.Dial(context.Background(), a.loop, addr, ao, a); err != nil {
		t.Fatal(err)
	}
	b.wait("Setup", func() bool { return b.c != nil })
}

func wantBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		t.Errorf("%s: %d octets, want %d; first difference at %d", what, len(got), len(want), i)
	}
}
