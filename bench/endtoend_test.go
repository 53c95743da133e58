package bench

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// provider returns RDMA over iWARP, or nil for TCP.
func provider(rdma bool) fabric.Provider {
	if !rdma {
		return nil
	}
	return iwarp.New(iwarp.Options{Log: zerolog.Nop()})
}

func startServer(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	o.Address, o.Loops, o.Budget = "127.0.0.1:0", 1, 256<<20
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

// works are loads of every kind; octets are those of Calls and Replies.
var works = []struct {
	name          string
	load          Load
	calls, replys int // octets of one; 0 when they differ
}{
	{"small", Load{Conns: 4, Depth: 16, Work: Work{Call: 100, Reply: 100}}, 100, 100},
	{"large calls", Load{Conns: 2, Depth: 2, Work: Work{Call: 1 << 20}}, 1 << 20, MinEchoReply},
	{"large replies", Load{Conns: 2, Depth: 2, Work: Work{Reply: 1 << 20}}, MinEchoCall, 1 << 20},
	{"mix", Load{Conns: 2, Depth: 8, Work: Work{Mix: "nfs3:read=50,write=30,getattr=20,null=1"}}, 0, 0},
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
					load.Warmup, load.Duration = 20*time.Millisecond, 200*time.Millisecond
					load.Processes = Processes{pid()}
					r, err := loader.Run(context.Background(), load)
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
					if load.Rate > 0 && (r.CallsPerSecond > 1.5*load.Rate || r.CallsPerSecond < load.Rate/4) {
						t.Errorf("%.0f calls/s, want about %.0f", r.CallsPerSecond, load.Rate)
					}
				})
			}
			if n := s.Wrong(); n > 0 {
				t.Errorf("%d calls with wrong data", n)
			}
		})
	}
}

// In the steady state neither side allocates for a Call. What is counted is the
// whole process, timers and profilers of the runtime included.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
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
				load.Warmup, load.Duration = 100*time.Millisecond, 200*time.Millisecond
				var before, after runtime.MemStats
				calls := make(chan uint64)
				go func() {
					time.Sleep(150 * time.Millisecond)
					runtime.ReadMemStats(&before)
					time.Sleep(100 * time.Millisecond)
					runtime.ReadMemStats(&after)
					calls <- 0
				}()
				r, err := loader.Run(context.Background(), load)
				<-calls
				if err != nil {
					t.Fatal(err)
				}
				n := after.Mallocs - before.Mallocs
				if per := float64(n) / float64(max(r.Calls/2, 1)); n > 200 && per > 0.05 {
					t.Errorf("%d allocations in about %d calls", n, r.Calls/2)
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
		return l
	}
	nobody := short(Load{})
	nobody.Target = "127.0.0.1:1"
	slow := short(Load{Work: Work{Delay: 5e6}})
	for _, tc := range []struct {
		name string
		load Load
		want string
	}{
		{"nobody", nobody, "refused"},
		{"unanswered", slow, "calls stay unanswered"},
		{"mix", short(Load{Work: Work{Mix: "nfs4:read"}}), "a list of NAME=WEIGHT"},
		{"process", short(Load{Processes: Processes{1 << 30}}), "CPU time"},
		{"depth", short(Load{Depth: MaxDepth + 1}), "want at most"},
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

// A server that goes away makes the run fail, and nothing hang.
func TestServerGone(t *testing.T) {
	loader := newLoader(t)
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			p := provider(transport == "rdma")
			s, err := StartServer(ServerOptions{Address: "127.0.0.1:0", Loops: 1, Budget: 64 << 20, Provider: p, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(50*time.Millisecond, func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			r, err := loader.Run(context.Background(), Load{
				Target: s.Addr().String(), Provider: p, Conns: 3, Depth: 4, Work: Work{Call: 100, Reply: 100}, Duration: 10 * time.Second,
			})
			if err == nil {
				t.Errorf("result %+v, want an error", r)
			}
		})
	}
}
