package tcpframe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func TestEcho(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	mem := &testMemory{}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	for _, n := range []int{8, 9, 100, 4096, firstLease - 4, firstLease, firstLease + 1, 300_000, 1 << 20, testMaxRecord} {
		want := pattern(n, byte(n))
		go p.Write(fragment(true, want))
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Fatalf("record of %d octets came back different", n)
		}
	}
}

// A record may have any number of fragments while its octets and those of its marks are within bounds.
func TestManyFragments(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	empty := make([]byte, markLen*1025)
	call := pattern(4<<20, 7)
	for _, tt := range []struct {
		name string
		want []byte
		each int
	}{
		{"4 MiB in fragments of 2 KiB", call, 2 << 10},
		{"fragments of one octet", call[:testMaxRecord/markLen-1026], 1},
	} {
		in := empty
		for part := range slices.Chunk(tt.want, tt.each) {
			in = append(in, fragment(false, part)...)
		}
		go p.Write(append(in, fragment(true, nil)...))
		if got := p.readRecord(); !bytes.Equal(got, tt.want) {
			t.Fatalf("%s: the record came back different", tt.name)
		}
	}
}

// Several pairs of Conns echo records of mixed lengths at the same time.
func TestDialEcho(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	mem := &testMemory{}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler { return echo() })
	var wg sync.WaitGroup
	for k := range 4 {
		sizes := []int{8, 70_000, 100, 1 << 20, 5000, 200_000, 9}
		rec := newRecorder()
		next := 0
		send := func(c *Conn) {
			n := sizes[next%len(sizes)]
			msg := pattern(n, byte(k+next))
			c.Send([][]byte{msg[:4], nil, msg[4:7], msg[7:]}, nil)
		}
		const rounds = 100
		done := make(chan struct{})
		rec.opened = send
		rec.record = func(c *Conn, b Buffer) {
			if !bytes.Equal(b.Bytes(), pattern(sizes[next%len(sizes)], byte(k+next))) {
				t.Errorf("record %d differs", next)
			}
			b.Release()
			if next++; next == rounds {
				c.Close(nil)
				close(done)
				return
			}
			send(c)
		}
		c, err := e.Dial(context.Background(), l.Addr().String(), e.Loops()[k%2], DialOptions{Conn: bounds(ConnOptions{Memory: lend(mem)})}, rec)
		if err != nil {
			t.Fatal(err)
		}
		if c.RemoteAddr() != l.Addr() || c.Loop() != e.Loops()[k%2] {
			t.Errorf("to %v on loop %d", c.RemoteAddr(), c.Loop().Index())
		}
		wg.Go(func() {
			<-done
			if err := rec.wait(t, "Close(nil)"); err != nil {
				t.Errorf("closed with %v, want nil", err)
			}
		})
	}
	wg.Wait()
}

func TestDialFails(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	rec := newRecorder()
	rec.opened = func(*Conn) { t.Error("Opened was called") }
	if _, err := dial(e, addr, DialOptions{}, rec); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("err %v, want connection refused", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Dial(ctx, addr, nil, DialOptions{Conn: bounds(ConnOptions{})}, rec); !errors.Is(err, context.Canceled) {
		t.Errorf("err %v, want canceled", err)
	}
}

// A stream that is not RPC is closed and counted, and leaves no memory leased.
func TestRefusals(t *testing.T) {
	t.Parallel()
	reg := metrics.New()
	e := startEngine(t, EngineOptions{Metrics: reg})
	mem := &testMemory{}
	var last atomic.Pointer[recorder]
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler {
		r := newRecorder()
		last.Store(r)
		return r
	})
	for _, tt := range []struct {
		name string
		in   []byte
		want reason
	}{
		{"mark of 2 GiB", testkit.Unhex(t, `ffffffff 00000001`), reasonTooLong},
		{"empty fragments without end", make([]byte, testMaxRecord+markLen), reasonFragments},
		{"fragments of one octet", bytes.Repeat(fragment(false, []byte{1}), testMaxRecord/markLen+1), reasonFragments},
		{"endless fragments", bytes.Repeat(fragment(false, make([]byte, 100_000)), 100), reasonTooLong},
		{"empty record", testkit.Unhex(t, `80000000`), reasonTooShort},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: storage\r\n\r\n"), reasonTooLong},
		{"TLS", testkit.Unhex(t, `16030102000100 01fc0303`), reasonTooLong},
		{"SSH", []byte("SSH-2.0-OpenSSH_9.2\r\n"), reasonTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := e.counted.of(ofListener, l.counters.name).refused[tt.want].Value()
			last.Store(nil)
			p := dialPeer(t, l)
			go p.Write(tt.in)
			p.wantEnd(tt.name)
			wantReason(t, last.Load().wait(t, tt.name), tt.want)
			if n := l.counters.refused[tt.want].Value() - before; n != 1 {
				t.Errorf("counted %d times", n)
			}
		})
	}
	if mem.Used() != 0 {
		t.Errorf("%d octets on loan", mem.Used())
	}
	for _, g := range []*metrics.Gauge{l.counters.conns, l.counters.inbound, l.counters.outbound, l.counters.paused} {
		if g.Value() != 0 {
			t.Errorf("a gauge is left at %d", g.Value())
		}
	}
}

func TestPeerEnds(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	for _, tt := range []struct {
		name string
		do   func(*peer)
		want func(error) bool
	}{
		{"FIN", func(p *peer) { p.Close() }, func(err error) bool { return err == io.EOF }},
		{"half close", func(p *peer) { p.CloseWrite() }, func(err error) bool { return err == io.EOF }},
		{"FIN in a record", func(p *peer) { p.send([]byte{0x80, 0, 0, 99, 1}); p.Close() }, func(err error) bool { return err == io.ErrUnexpectedEOF }},
		{"RST", func(p *peer) { p.SetLinger(0); p.Close() }, isReset},
		{"RST in a record", func(p *peer) { p.send([]byte{0x80, 0, 0, 99, 1}); p.SetLinger(0); p.Close() }, isReset},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := newRecorder()
			opened := make(chan struct{})
			rec.opened = func(*Conn) { close(opened) }
			l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler { return rec })
			p := dialPeer(t, l)
			p.send(fragment(true, pattern(100, 0)))
			<-opened
			tt.do(p)
			if err := rec.wait(t, tt.name); !tt.want(err) {
				t.Errorf("closed with %v", err)
			}
			testkit.Eventually(t, "the listener has no connection", func() bool { return connsOf(l) == 0 })
		})
	}
}

// A client that half-closes after its Calls gets the replies that were made in that pass.
func TestHalfCloseGetsReplies(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	p.send(bytes.Repeat(fragment(true, pattern(100, 0)), 100))
	p.CloseWrite()
	if n := p.wantEnd("half close"); n != 104*100 {
		t.Errorf("%d octets of replies, want %d", n, 104*100)
	}
}

// Close first writes every record, even to a peer that goes on writing.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	why := errors.New("drained")
	var released, late atomic.Int32
	draining := make(chan struct{})
	rec.record = func(c *Conn, b Buffer) {
		b.Release()
		for range 32 {
			c.Send([][]byte{make([]byte, 1<<20)}, releaseFunc(func() { released.Add(1) }))
		}
		c.Close(why)
		c.Close(errors.New("again"))
		c.due += int64(peerLasts) // a busy machine may need longer than closeTimeout for so many octets
		close(draining)
		c.Send([][]byte{make([]byte, 8)}, releaseFunc(func() { late.Add(1) }))
		if late.Load() != 1 {
			t.Error("a Send after Close was not released")
		}
	}
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	p.send(bytes.Repeat(fragment(true, pattern(100, 0)), 1000))
	<-draining
	if n := p.wantEnd("Close"); n != 32*(1<<20+4) {
		t.Errorf("%d octets before the end, want %d", n, 32*(1<<20+4))
	}
	p.Close()
	if err := rec.wait(t, "Close"); err != why {
		t.Errorf("closed with %v, want the error of Close", err)
	}
	if released.Load() != 32 {
		t.Errorf("%d of 32 released", released.Load())
	}
}

func TestAbort(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	why := errors.New("enough")
	var released int
	rec.record = func(c *Conn, b Buffer) {
		for range 64 {
			c.Send([][]byte{make([]byte, 1<<20)}, releaseFunc(func() { released++ }))
		}
		b.Release()
		c.Abort(why)
	}
	rec.closed = func(*Conn, error) {
		if released != 64 {
			t.Errorf("%d of 64 released before Closed", released)
		}
	}
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	p.send(bytes.Repeat(fragment(true, pattern(100, 0)), 10))
	if err := rec.wait(t, "Abort"); err != why {
		t.Errorf("closed with %v", err)
	}
	if _, err := io.Copy(io.Discard, p); !isReset(err) {
		t.Errorf("the peer reads %v, want a reset", err)
	}
}

// Stop ends every connection and releases every Buffer.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Metrics: metrics.New()})
	mem := &testMemory{}
	var opened, ended, stopped atomic.Int32
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler {
		r := echo()
		r.opened = func(*Conn) { opened.Add(1) }
		r.closed = func(_ *Conn, err error) {
			ended.Add(1)
			if errors.Is(err, loop.ErrStopped) {
				stopped.Add(1)
			}
		}
		return r
	})
	var wg sync.WaitGroup
	for i := range 16 {
		p := dialPeer(t, l)
		rec := fragment(true, pattern([]int{100, 300_000}[i%2], 0))
		wg.Go(func() {
			for {
				if _, err := p.Write(rec); err != nil {
					return
				}
			}
		})
		if i%4 != 3 { // every fourth peer does not read
			wg.Go(func() { io.Copy(io.Discard, p) })
		}
	}
	testkit.Eventually(t, "all connections are open and loaded", func() bool {
		return opened.Load() == 16 && l.counters.sent.Value() > 4<<20
	})
	done := make(chan struct{})
	go func() { e.Stop(); close(done) }()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatal("Stop hangs")
	}
	if ended.Load() != 16 || stopped.Load() != 16 {
		t.Errorf("%d of 16 ended, %d with ErrStopped", ended.Load(), stopped.Load())
	}
	if mem.Used() != 0 {
		t.Errorf("%d octets on loan", mem.Used())
	}
	wg.Wait()
	e.Stop()
	if _, err := dial(e, l.Addr().String(), DialOptions{}, newRecorder()); err == nil {
		t.Error("Dial on a stopped engine")
	}
	if _, err := e.Listen(listenBounds(ListenOptions{Address: "127.0.0.1:0"}), nil); !errors.Is(err, errClosed) {
		t.Errorf("Listen on a stopped engine: %v", err)
	}
}

// A Call and its reply do not allocate, from socket to socket.
func TestRoundTripAllocs(t *testing.T) {
	e := startEngine(t, EngineOptions{tick: time.Hour})
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler { return sender{} })
	p := dialPeer(t, l)
	for _, n := range []int{100, 50_000} {
		rec := fragment(true, pattern(n, 0))
		buf := make([]byte, len(rec))
		if a := testing.AllocsPerRun(200, func() {
			p.send(rec)
			io.ReadFull(p, buf)
		}); a >= 1 {
			t.Errorf("%d octets: %v allocs per round trip, want 0", n, a)
		}
	}
}

// A sender echoes without allocating.
type sender struct{}

func (sender) Opened(*Conn)        {}
func (sender) Closed(*Conn, error) {}
func (sender) Record(c *Conn, b Buffer) {
	parts := [1][]byte{b.Bytes()}
	c.Send(parts[:], b)
}

func TestMetrics(t *testing.T) {
	reg := metrics.New()
	e := startEngine(t, EngineOptions{Metrics: reg})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(100, 0)))
	p.readRecord()
	m := l.counters
	testkit.Eventually(t, "the octets written are counted", func() bool { return m.sent.Value() == 104 })
	if m.received.Value() != 104 || m.sent.Value() != 104 || m.conns.Value() != 1 {
		t.Errorf("received %d, sent %d, conns %d", m.received.Value(), m.sent.Value(), m.conns.Value())
	}
	// A listener of the same name, after a reload, has the same series.
	l.Close()
	l2 := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	dialPeer(t, l2)
	testkit.Eventually(t, "the new listener counts in the same series", func() bool { return m.conns.Value() == 2 })
}
