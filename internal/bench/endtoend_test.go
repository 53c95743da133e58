package bench

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// provider returns RDMA over iWARP, or nil for TCP.
func provider(rdma bool) fabric.Provider {
	if !rdma {
		return nil
	}
	p, err := iwarp.New(iwarp.Options{
		DialTimeout: 10 * time.Second, AcceptTimeout: 5 * time.Second, ProgressTimeout: 30 * time.Second, Log: zerolog.Nop(),
	})
	if err != nil {
		panic(err)
	}
	return p
}

func startServer(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	o.Address, o.Loops, o.Budget = "127.0.0.1:0", 1, 256<<20
	o.Credits, o.CallInline, o.ReplyInline = 128, 4096, 4096
	o.Log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	s, err := StartServer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func newLoader(t *testing.T) *Loader {
	t.Helper()
	l, err := NewLoader(LoaderOptions{Loops: 1, Budget: 256 << 20, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// works are loads of every kind, with the octets of their Calls and Replies.
var works = []struct {
	name          string
	load          Load
	calls, replys int // octets of one; 0 when they differ
}{
	{"small", Load{Conns: 4, Depth: 16, Work: Work{Call: 100, Reply: 100}}, 100, 100},
	{"large calls", Load{Conns: 2, Depth: 2, Work: Work{Call: 1 << 20}}, 1 << 20, MinEchoReply},
	{"large replies", Load{Conns: 2, Depth: 2, Work: Work{Reply: 1 << 20}}, MinEchoCall, 1 << 20},
	{"mix", Load{Conns: 2, Depth: 8, Work: Work{Mix: "nfs3:read=50,write=30,getattr=20,null=1", Size: 64 << 10}}, 0, 0},
	{"delay", Load{Conns: 2, Depth: 4, Work: Work{Call: 64, Reply: 64, Delay: 2000}}, 64, 64},
	{"rate", Load{Conns: 2, Depth: 4, Rate: 2000, Work: Work{Call: 100, Reply: 5000}}, 100, 5000},
}

func TestEndToEnd(t *testing.T) {
	loader := newLoader(t)
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			p := provider(transport == "rdma")
			s := startServer(t, ServerOptions{Provider: p, Full: true})
			for _, w := range works {
				t.Run(w.name, func(t *testing.T) {
					load := w.load
					load.Target, load.Provider, load.Full = s.Addr().String(), p, true
					load.Warmup, load.Duration, load.Timeout = 20*time.Millisecond, 200*time.Millisecond, 10*time.Second
					load.Processes = Processes{pid()}
					start := time.Now()
					r, err := loader.Run(context.Background(), load)
					for err != nil && strings.Contains(err.Error(), "no call was answered") && load.Duration < 5*time.Second {
						load.Duration *= 4 // the machine is busy
						start = time.Now()
						r, err = loader.Run(context.Background(), load)
					}
					took := time.Since(start)
					if err != nil {
						t.Fatal(err)
					}
					if r.Calls == 0 || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P99 || r.CPU == nil || r.CPU.PerCall <= 0 {
						t.Errorf("result %+v, CPU %+v", r, r.CPU)
					}
					if w.calls > 0 && (r.CallOctets != uint64(w.calls)*r.Calls || r.ReplyOctets != uint64(w.replys)*r.Calls) {
						t.Errorf("%d calls of %d octets and replies of %d; want %d and %d each", r.Calls, r.CallOctets, r.ReplyOctets, w.calls, w.replys)
					}
					if load.Work.Delay > 0 && r.Latency.P50 < 2000 {
						t.Errorf("p50 %.0f us, want the delay of 2000 us at least", r.Latency.P50)
					}
					// A window may have Calls that were due before it, but no run has more Calls
					// than are due.
					if most := load.Rate*took.Seconds() + 1; load.Rate > 0 && float64(r.Calls) > most {
						t.Errorf("%d calls in %v, want %.0f at most", r.Calls, took, most)
					}
				})
			}
			if n := s.Wrong(); n > 0 {
				t.Errorf("%d calls with wrong data", n)
			}
		})
	}
}

// A pacedClient records the start of each Call.
type pacedClient struct {
	free   int
	starts []int64
}

func (c *pacedClient) call(start int64) { c.free--; c.starts = append(c.starts, start) }
func (c *pacedClient) slots() int       { return c.free }
func (c *pacedClient) close()           {}

// TestCatchUp: catchUp starts the Calls that are due, on one connection after the other. The
// latency of a Call that waited for a slot counts from the time when it was due.
func TestCatchUp(t *testing.T) {
	a, b := &pacedClient{free: 2}, &pacedClient{free: 3}
	w := &worker{clients: []client{a, b}, due: 100, step: 10}
	for _, s := range []struct {
		name       string
		now, start int64
		a, b       []int64 // all starts so far
	}{
		{"nothing is due", 99, 99, nil, nil},
		{"the first", 100, 100, nil, []int64{100}},
		{"not again", 109, 109, nil, []int64{100}},
		{"two at once, late", 125, 125, []int64{125}, []int64{100, 125}},
		{"no slot for the third", 155, 155, []int64{125, 155}, []int64{100, 125, 155}},
		{"still none", 160, 160, []int64{125, 155}, []int64{100, 125, 155}},
	} {
		w.catchUp(s.now, s.start)
		if !slices.Equal(a.starts, s.a) || !slices.Equal(b.starts, s.b) {
			t.Errorf("%s: calls at %v and %v, want %v and %v", s.name, a.starts, b.starts, s.a, s.b)
		}
	}
	a.free = 5
	w.catchUp(165, 0) // a Reply made room
	if want := []int64{125, 155, 150, 160}; !slices.Equal(a.starts, want) {
		t.Errorf("calls at %v, want %v", a.starts, want)
	}
	w.stopping = true
	if w.catchUp(1000, 0); len(a.starts) != 4 || len(b.starts) != 3 {
		t.Error("calls of a worker that stops")
	}
}

// begin starts a run as Loader.Run does, with a window that lasts until cancel. The channel
// has the error that ended the run.
func begin(l *Loader, o Load) (r *run, cancel context.CancelFunc, ended <-chan error, err error) {
	o.Warmup, o.Duration, o.Timeout = time.Nanosecond, time.Hour, 10*time.Second
	if r, err = l.prepare(o); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan error, 1)
	go func() { _, err := r.measure(ctx); c <- err }()
	return r, cancel, c, nil
}

// In the steady state neither side allocates for a Call. The test counts allocations of
// the whole process, including the runtime's timers and profilers, and gnet's two for a pass that serves several sockets.
func TestNoAllocations(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates; run without it")
	}
	loader := newLoader(t)
	for _, transport := range []string{"tcp", "rdma"} {
		for _, w := range works {
			if w.load.Rate > 0 || w.load.Work.Delay > 0 {
				continue
			}
			t.Run(transport+" "+w.name, func(t *testing.T) {
				p := provider(transport == "rdma")
				s := startServer(t, ServerOptions{Provider: p})
				load := w.load
				load.Target, load.Provider = s.Addr().String(), p
				r, cancel, ended, err := begin(loader, load)
				if err != nil {
					t.Fatal(err)
				}
				defer cancel()
				// answered waits until so many Calls are answered, and returns how many
				// are. It allocates next to nothing.
				count := make(chan uint64)
				look := loop.TaskFunc(func() { count <- r.workers[0].stats.latency.Count() })
				answered := func(want uint64) (n uint64) {
					testkit.Settles(testkit.Patience, func() bool {
						r.workers[0].loop.Post(look)
						n = <-count
						return n >= want || len(ended) > 0
					})
					if n < want {
						cancel()
						t.Fatalf("%d calls were answered, want %d: %v", n, want, <-ended)
					}
					return n
				}
				// gathered is how many passes of the loops have ended with a task of gnet, which allocates two
				// objects for each. How many there are does not depend on the Calls alone.
				gathered := func() (n uint64) {
					for _, l := range slices.Concat(loader.engine.Loops(), s.engine.Loops()) {
						l.Post(loop.TaskFunc(func() { count <- l.Tally().Gathered }))
						n += <-count
					}
					return n
				}
				slots := uint64(load.Conns * load.Depth)
				warm := answered(250 * slots)
				passes := gathered()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				calls := answered(warm+500*slots) - warm
				runtime.ReadMemStats(&after)
				passes = gathered() - passes
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				n := int64(after.Mallocs-before.Mallocs) - int64(2*passes)
				if per := float64(n) / float64(calls); n > 200 && per > 0.15 {
					t.Errorf("%d allocations in %d calls, and %d gathered passes", n, calls, passes)
				}
			})
		}
	}
}

func TestRunFails(t *testing.T) {
	loader := newLoader(t)
	s := startServer(t, ServerOptions{})
	short := func(l Load) Load {
		l.Target, l.Warmup, l.Duration, l.Timeout = s.Addr().String(), time.Millisecond, 20*time.Millisecond, time.Second
		l.Conns, l.Depth = 1, max(l.Depth, 1)
		return l
	}
	closed := short(Load{})
	closed.Target = "127.0.0.1:1"
	slow := short(Load{Work: Work{Delay: 5e6}})
	for _, tc := range []struct {
		name string
		load Load
		want string
	}{
		{"closed port", closed, "refused"},
		{"unanswered", slow, "calls stay unanswered"},
		{"mix", short(Load{Work: Work{Mix: "nfs4:read", Size: 64 << 10}}), "a list of NAME=WEIGHT"},
		{"process", short(Load{Processes: Processes{1 << 30}}), "CPU time"},
		{"depth", short(Load{Depth: maxDepth + 1}), "is out of range; write 1 to 4096"},
		{"zero", Load{Target: closed.Target}, "--conns 0 is out of range; write 1 to"},
		{"no time", Load{Target: closed.Target, Conns: 1, Depth: 1}, "--duration 0s is out of range; write a time above 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := loader.Run(context.Background(), tc.load)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("result %+v, error %v, want %q", r, err, tc.want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		load := short(Load{})
		load.Duration = time.Minute
		if _, err := loader.Run(ctx, load); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

// A run fails, and does not hang, when its server closes.
func TestServerGone(t *testing.T) {
	loader := newLoader(t)
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			p := provider(transport == "rdma")
			s, err := StartServer(ServerOptions{Address: "127.0.0.1:0", Loops: 1, Budget: 64 << 20, Credits: 128, CallInline: 4096, ReplyInline: 4096, Provider: p, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(50*time.Millisecond, func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			r, err := loader.Run(context.Background(), Load{
				Target: s.Addr().String(), Provider: p, Conns: 3, Depth: 4, Work: Work{Call: 100, Reply: 100}, Duration: 10 * time.Second, Timeout: 10 * time.Second,
			})
			if err == nil {
				t.Errorf("result %+v, want an error", r)
			}
		})
	}
}

// A provider that registers memory is given all the memory that messages are in.
func TestProviderMemory(t *testing.T) {
	has := func(name string, extents [][]byte, b []byte) {
		t.Helper()
		if !slices.ContainsFunc(extents, func(x []byte) bool {
			at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&x[0]))
			return at < uintptr(len(x)) && at+uintptr(len(b)) <= uintptr(len(x))
		}) {
			t.Errorf("%s: a message is in none of %d extents", name, len(extents))
		}
	}
	var extents [][]byte
	s := startServer(t, ServerOptions{Open: func(memory func() [][]byte) (fabric.Provider, error) {
		extents = memory()
		return provider(true), nil
	}})
	has("server", extents, s.service.pattern)
	l := newLoader(t)
	call, err := l.calls.Lease(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer call.Release()
	has("load", l.Memory(), call.Bytes())

	want := errors.New("no such device")
	_, err = StartServer(ServerOptions{Budget: 16 << 20, Open: func(func() [][]byte) (fabric.Provider, error) { return nil, want }})
	if !errors.Is(err, want) {
		t.Errorf("StartServer: %v, want %v", err, want)
	}
}
