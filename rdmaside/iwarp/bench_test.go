package iwarp

import (
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// bridge moves everything that a has to write into b, as a socket would, in
// portions of at most 64 KiB.
func bridge(a, b *qp) {
	for out := a.output(); len(out) > 0; out = a.output() {
		n := 0
		for _, p := range out {
			n += len(p)
			for len(p) > 0 {
				k := min(len(p), 64<<10)
				b.input(p[:k])
				p = p[k:]
			}
		}
		a.wrote(n)
	}
}

func qpPair(crc bool, emss int) (a, b *qp) {
	cfg := qpConfig{crc: crc, receives: 16, sends: 16, handlesN: 16, ird: 4, ord: 4, pool: &testPool}
	a, b = newQP(cfg), newQP(cfg)
	a.setMSS(emss)
	b.setMSS(emss)
	a.start()
	b.start()
	return a, b
}

// TestAllocs checks that no verb allocates in the steady state, nor does Register.
func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("takes 16 s with the race detector, which looks at every octet; other tests show it the same code")
	}
	for _, emss := range []int{1448, 65483} {
		a, b := qpPair(true, emss)
		buf, data, recv := make([]byte, 64<<10), make([]byte, 64<<10), make([]byte, 4096)
		parts := [][]byte{data[:100], data[100:200]}
		big := [][]byte{data}
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for name, f := range map[string]func(){
			"Send": func() {
				check(b.postReceive(1, recv))
				check(a.post(1, wire.OpSend, parts, 0, 0))
				bridge(a, b)
			},
			"Write": func() {
				r, err := b.register(buf, fabric.RemoteWrite)
				check(err)
				check(a.post(1, wire.OpWrite, big, uint32(r.Handle), r.Offset))
				bridge(a, b)
				b.invalidate(uint32(r.Handle))
			},
			"Read": func() {
				r, err := b.register(data, fabric.RemoteRead)
				check(err)
				check(a.postRead(1, buf, r))
				bridge(a, b)
				bridge(b, a)
				b.invalidate(uint32(r.Handle))
			},
		} {
			run := func() {
				f()
				for _, q := range []*qp{a, b} {
					for _, c := range q.take() {
						check(c.Err)
					}
				}
			}
			for range 3 * retiredMax { // until the table has its size
				run()
			}
			if n := testing.AllocsPerRun(100, run); n != 0 {
				t.Errorf("%s at EMSS %d: %v allocations", name, emss, n)
			}
		}
	}
}

// BenchmarkCore moves octets from one qp to another: all that is not the kernel.
func BenchmarkCore(b *testing.B) {
	for _, crc := range []bool{true, false} {
		b.Run(fmt.Sprintf("Send128/crc=%v", crc), func(b *testing.B) {
			x, y := qpPair(crc, 65483)
			data, recv := [][]byte{make([]byte, 128)}, make([]byte, 4096)
			b.SetBytes(128)
			b.ReportAllocs()
			for b.Loop() {
				_ = y.postReceive(1, recv)
				_ = x.post(0, wire.OpSend, data, 0, 0)
				bridge(x, y)
				y.take()
			}
			if x.err != nil || y.err != nil {
				b.Fatal(x.err, y.err)
			}
		})
		for _, emss := range []int{1448, 8948, 65483} {
			b.Run(fmt.Sprintf("Write1M/emss=%d/crc=%v", emss, crc), func(b *testing.B) {
				x, y := qpPair(crc, emss)
				data, into := [][]byte{make([]byte, 1<<20)}, make([]byte, 1<<20)
				r, err := y.register(into, fabric.RemoteWrite)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(1 << 20)
				b.ReportAllocs()
				for b.Loop() {
					_ = x.post(0, wire.OpWrite, data, uint32(r.Handle), r.Offset)
					bridge(x, y)
				}
				if x.err != nil || y.err != nil {
					b.Fatal(x.err, y.err)
				}
			})
		}
	}
}

// A pinger sends a message for each that arrives.
type pinger struct {
	c    fabric.Conn
	recv [][]byte
	msg  [][]byte
	left int
	echo bool
	done chan struct{}
}

func (p *pinger) Setup(c fabric.Conn) error {
	p.c = c
	for i, b := range p.recv {
		if err := c.PostReceive(uint64(i), b); err != nil {
			return err
		}
	}
	return nil
}

func (p *pinger) Completed(cs []fabric.Completion) {
	for i := range cs {
		if cs[i].Op != fabric.OpReceive || cs[i].Err != nil {
			continue
		}
		_ = p.c.PostReceive(cs[i].ID, p.recv[cs[i].ID])
		if p.echo {
			_ = p.c.PostSend(0, fabric.Send{Parts: p.msg})
			continue
		}
		if p.left--; p.left == 0 {
			p.done <- struct{}{}
		} else if p.left > 0 {
			_ = p.c.PostSend(0, fabric.Send{Parts: p.msg})
		}
	}
}

func (p *pinger) Closed(error) {}

func newPinger(size int, echo bool) *pinger {
	p := &pinger{msg: [][]byte{make([]byte, size)}, echo: echo, done: make(chan struct{}, 1)}
	for range 64 {
		p.recv = append(p.recv, make([]byte, 4096))
	}
	return p
}

func pingers(b testing.TB, o Options) (x, y *pinger, on *iwarptest.Loop) {
	lx, ly := newLoop(b), newLoop(b)
	x, y = newPinger(128, false), newPinger(128, true)
	p := newProvider(o)
	addr := listen(b, p, fabric.ListenOptions{}, fabric.ConnOptions{ORD: 4}, func(fabric.Incoming) (loop.Loop, fabric.Handler) { return ly, y })
	if _, err := p.Dial(b.Context(), lx, addr, fabric.ConnOptions{ORD: 4}, x); err != nil {
		b.Fatal(err)
	}
	return x, y, lx
}

type startPing struct {
	p *pinger
	n int
	k int
}

func (s *startPing) Run() {
	s.p.left = s.n
	for range s.k {
		_ = s.p.c.PostSend(0, fabric.Send{Parts: s.p.msg})
	}
}

// BenchmarkSocketPingPong bounces 128 octets between two loops over loopback, one
// message at a time and 32 at a time.
func BenchmarkSocketPingPong(b *testing.B) {
	for _, k := range []int{1, 32} {
		b.Run(fmt.Sprintf("window=%d", k), func(b *testing.B) {
			x, _, on := pingers(b, Options{})
			b.ReportAllocs()
			b.ResetTimer()
			on.Post(&startPing{x, max(b.N, k), k})
			<-x.done
		})
	}
}

// TestSocketAllocs checks that a connection over a socket does not allocate in the steady
// state.
func TestSocketAllocs(t *testing.T) {
	x, _, on := pingers(t, Options{})
	s := &startPing{x, 50, 1}
	run := func() {
		on.Post(s)
		<-x.done
	}
	run()
	if n := testing.AllocsPerRun(20, run); n > 1 {
		t.Errorf("%v allocations for 50 round trips", n)
	}
}

// BenchmarkSocketWrite writes 1 MiB and a Send that is answered, over loopback.
func BenchmarkSocketWrite(b *testing.B) {
	for _, crcOff := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%v", !crcOff), func(b *testing.B) {
			loopA, loopB := newLoop(b), newLoop(b)
			u, v := newUser(b, loopA), newPinger(8, true)
			into := make([]byte, 1<<20)
			data := [][]byte{make([]byte, 1<<20)}
			p := newProvider(Options{CRCOff: crcOff})
			addr := listen(b, p, fabric.ListenOptions{}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) { return loopB, v })
			recv := make([]byte, 64)
			const depth = 4
			var region fabric.Region
			left, done := 0, make(chan struct{}, 1)
			post := func() {
				_ = u.c.PostReceive(1, recv)
				_ = u.c.PostWrite(0, fabric.Write{Parts: data, To: region})
				_ = u.c.PostSend(0, fabric.Send{Parts: v.msg})
			}
			h := &hook{setup: func(c fabric.Conn) { u.c = c }, completed: func(cs []fabric.Completion) {
				for range cs {
					if left--; left == 0 {
						done <- struct{}{}
					} else if left >= depth {
						post()
					}
				}
			}}
			if _, err := p.Dial(b.Context(), loopA, addr, fabric.ConnOptions{}, h); err != nil {
				b.Fatal(err)
			}
			testkit.Eventually(b, "the region", func() bool {
				loopB.Do(func() {
					if v.c != nil {
						region, _ = v.c.Register(into, fabric.RemoteWrite)
					}
				})
				return region.Handle != 0
			})
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			b.ResetTimer()
			loopA.Post(loop.TaskFunc(func() {
				left = max(b.N, depth)
				for range depth {
					post()
				}
			}))
			<-done
		})
	}
}

type hook struct {
	setup     func(fabric.Conn)
	completed func([]fabric.Completion)
}

func (h *hook) Setup(c fabric.Conn) error        { h.setup(c); return nil }
func (h *hook) Completed(cs []fabric.Completion) { h.completed(cs) }
func (h *hook) Closed(error)                     {}
