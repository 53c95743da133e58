package proxy_test

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

const (
	attackers = 62
	// attackStall is the time within which a Call has to make progress, and attackMemory the time
	// that a client may wait for memory. An attacker stays no longer than both together. A
	// neighbour that attackers hold up is closed after attackMemory.
	attackStall  = 5 * time.Second
	attackMemory = 5 * time.Second
	// attackPace demands as much in attackStall as the default of limits.pace does in 30 s.
	attackPace = 96 << 10
	// neighbourCalls are answered at the least while attackers are there. A neighbour that waits
	// until an attacker leaves has one or two.
	neighbourCalls = 8
)

// An attackBed is a bridge with little memory and short times, before a TCP server.
type attackBed struct {
	*proxytest.Harness
	p    *proxy.Proxy
	rdma *fabrictest.Loopback
}

func newAttackBed(t *testing.T) *attackBed {
	h := proxytest.NewHarness(t, 64<<20, func(o *tcpframe.EngineOptions) { o.MemoryTimeout = attackMemory })
	s := h.TCPServer(proxytest.Behaviour{})
	b := &attackBed{Harness: h, rdma: fabrictest.NewLoopback()}
	b.p = h.Proxy([]settings.ListenerOptions{
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", Pace: attackPace, StallTimeout: attackStall},
		{Name: "rdma", Address: "front", RDMA: true, Provider: b.rdma, Upstream: "tcp", Pace: attackPace, StallTimeout: attackStall},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1 << 10}})
	return b
}

// rests waits until nothing is counted for clients any more, all of which have gone.
func (b *attackBed) rests() {
	b.T.Helper()
	var counts [4]int64
	if !testkit.Settles(testkit.Patience, func() bool {
		counts = b.p.CallMemoryCounts()
		return counts == [4]int64{} && metric(b.Harness, "call_memory_waiting_connections") == 0
	}) {
		b.T.Errorf("counts are %v, and %d clients wait", counts, metric(b.Harness, "call_memory_waiting_connections"))
	}
}

// dialFrom connects from 127.0.a.b.
func (b *attackBed) dialFrom(a, c byte) net.Conn {
	b.T.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, a, c)}}
	conn, err := d.Dial("tcp", b.p.Addr("nfs"))
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { conn.Close() })
	return conn
}

// begun returns the beginning of a record of 4 MiB.
func begun(octets int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, 1<<31|4<<20), make([]byte, octets)...)
}

// A neighbour sends GETATTRs and WRITEs of 1 MiB until stop, and measures how long they take.
type neighbour struct {
	conn     *proxytest.Client
	took     []time.Duration
	answered atomic.Int64
	done     sync.WaitGroup
	stop     chan struct{}
}

func (b *attackBed) neighbour() *neighbour {
	c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, 1), b.p.Addr("nfs"))
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { _ = c.Close() })
	n := &neighbour{conn: c, stop: make(chan struct{})}
	started := make(chan struct{})
	write := proxytest.WriteCall(0, 1, 1<<20)
	n.done.Go(func() {
		for xid := uint32(1); ; xid++ {
			m := proxytest.GetattrCall(xid)
			if xid%2 == 0 {
				m = write
				binary.BigEndian.PutUint32(m, xid)
			}
			began := time.Now()
			if _, err := c.Call(m); err != nil {
				b.T.Errorf("the neighbour's Call number %d: %v", xid, err)
				if xid <= 4 {
					close(started)
				}
				return
			}
			n.took = append(n.took, time.Since(began))
			n.answered.Add(1)
			if xid == 4 {
				close(started)
			}
			select {
			case <-n.stop:
				return
			case <-time.After(100 * time.Millisecond): // a client that thinks between its Calls
			}
		}
	})
	<-started
	return n
}

// slowWriter sends WRITEs of 4 MiB at 1 MiB/s until stop is closed, as a client far away does. The
// bridge must not close it, unless the machine was so busy that it sent nothing for long.
func (b *attackBed) slowWriter(stop <-chan struct{}) (end func()) {
	c := b.dialFrom(8, 1)
	m := testkit.Record(proxytest.WriteCall(1, 1, 4<<20))
	var longest time.Duration // between two parts
	write := func(pause time.Duration) error {
		longest = 0
		sent := time.Now()
		for part := range slices.Chunk(m, 64<<10) {
			longest, sent = max(longest, time.Since(sent)), time.Now()
			if _, err := c.Write(part); err != nil {
				return err
			}
			select {
			case <-stop: // the rest follows at once
			case <-time.After(pause): // how slowly the client sends
			}
		}
		_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
		_, err := testkit.ReadRecord(c)
		return err
	}
	if err := write(0); err != nil {
		b.T.Fatal(err)
	}
	var done sync.WaitGroup
	n := 0
	done.Go(func() {
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			err := write(time.Second / 16)
			switch {
			case err != nil && longest > 400*time.Millisecond:
				b.T.Logf("WRITE number %d, which paused for %v: %v", n, longest, err)
				c.Close()
				c = b.dialFrom(8, 1)
			case err != nil:
				b.T.Errorf("WRITE number %d at 1 MiB/s: %v", n, err)
				return
			}
		}
	})
	return func() {
		done.Wait()
		c.Close()
		b.T.Logf("%d WRITEs at 1 MiB/s", n)
	}
}

// end logs how long the neighbour's Calls took, and ends its connection.
func (n *neighbour) end(t *testing.T) {
	close(n.stop)
	n.done.Wait()
	n.conn.Close()
	slices.Sort(n.took)
	last := len(n.took) - 1
	t.Logf("%d Calls of the neighbour: p99 %v, worst %v", len(n.took), n.took[last*99/100], n.took[last])
}

// TestMemoryAttacks: clients that announce Calls and do not send them hold no neighbour up, and
// are closed.
func TestMemoryAttacks(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, tt := range []struct {
		name    string
		address func(i int) (a, b byte)
		octets  int           // sent of each record
		drip    time.Duration // between single octets that follow; 0: none follow
		known   bool          // each attacker has had a Call answered before
	}{
		{name: "one address", address: func(int) (byte, byte) { return 2, 1 }, octets: 33 << 10},
		{name: "many addresses", address: func(i int) (byte, byte) { return 3, byte(1 + i) }, octets: 33 << 10},
		{name: "many addresses, half a record", address: func(i int) (byte, byte) { return 4, byte(1 + i) }, octets: 2 << 20},
		{name: "many addresses, an octet now and then", address: func(i int) (byte, byte) { return 5, byte(1 + i) }, octets: 33 << 10, drip: time.Second},
		{name: "many addresses, known", address: func(i int) (byte, byte) { return 6, byte(1 + i) }, octets: 33 << 10, known: true},
	} {
		atOnce(t, &all, tt.name, func(t *testing.T) {
			b := newAttackBed(t)
			n := b.neighbour()
			slow := b.slowWriter(n.stop)
			began, before := time.Now(), n.answered.Load()
			var left atomic.Int32
			left.Store(attackers)
			for i := range attackers {
				c := b.dialFrom(tt.address(i))
				go func() {
					defer left.Add(-1)
					if tt.known {
						_ = testkit.WriteRecord(c, proxytest.WriteCall(1, 1, 128<<10))
						_, _ = io.ReadFull(c, make([]byte, 4))
					}
					go func() {
						_, err := c.Write(begun(tt.octets))
						for tt.drip > 0 && err == nil {
							time.Sleep(tt.drip) // how slowly the attacker sends
							_, err = c.Write([]byte{0})
						}
					}()
					_, _ = io.Copy(io.Discard, c)
				}()
			}
			testkit.Settles(testkit.Patience, func() bool { return left.Load() == 0 })
			t.Logf("%d of %d attackers are left after %v; %d were slow senders, %d stalled, %d waited too long", left.Load(), attackers, time.Since(began),
				metric(b.Harness, `closed_clients_total{reason="slow_sender"}`),
				metric(b.Harness, `listener_refused_connections_total{listener="nfs",reason="stalled"}`), metric(b.Harness, `listener_refused_connections_total{listener="nfs",reason="memory"}`))
			if n := left.Load(); n > 0 {
				t.Errorf("%d attackers are left", n)
			}
			if had := n.answered.Load() - before; had < neighbourCalls {
				t.Errorf("the neighbour had %d Calls answered meanwhile, want %d at least", had, neighbourCalls)
			}
			n.end(t)
			slow()
			b.rests()
		})
	}
}

// TestMemoryAttackRDMA: a client that offers Read chunks and serves hardly any RDMA Read holds no
// neighbour up, and is closed.
func TestMemoryAttackRDMA(t *testing.T) {
	t.Parallel()
	b := newAttackBed(t)
	n := b.neighbour()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	var serve atomic.Int32
	var conn atomic.Pointer[fabric.Conn]
	b.rdma.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
		if op.Op != fabric.OpRead {
			return fabrictest.Pass
		}
		conn.Store(&op.Conn)
		if serve.Add(-1) >= 0 {
			return fabrictest.Pass
		}
		return fabrictest.Hold
	})
	c, err := b.DialRDMA(b.rdma, l, "front", rdmaside.RequesterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all []<-chan []byte
	for xid := range uint32(12) { // more than all memory for Calls
		ch, err := c.Go(proxytest.WriteCall(xid, 1, 4<<20-4<<10))
		if err != nil && xid == 0 {
			t.Fatal(err)
		}
		if err != nil { // the attacker was closed before it had sent all on a busy machine
			break
		}
		all = append(all, ch)
	}
	ended := make(chan struct{})
	go func() {
		for _, ch := range all {
			<-ch
		}
		close(ended)
	}()
	every := time.NewTicker(attackStall * 3 / 2)
	defer every.Stop()
	give := time.After(testkit.Patience)
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case <-every.C:
			serve.Store(1)
			if p := conn.Load(); p != nil {
				b.rdma.Resume(*p)
			}
		case <-give:
			t.Error("the attacker is left")
			open = false
		}
	}
	t.Logf("the attacker stayed for %v", time.Since(began))
	n.end(t)
	if got := metric(b.Harness, `listener_refused_connections_total{listener="rdma",reason="stalled"}`); got != 1 {
		t.Errorf("%d stalled connections counted", got)
	}
	b.rdma.Inject(nil)
	b.rests()
}
