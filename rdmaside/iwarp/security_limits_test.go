package iwarp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// S22: inbound Reads are bounded, and no Response is ever held in memory.
func TestS22_ReadsBounded(t *testing.T) {
	f := plain()
	f.Enhanced.ORD = 4
	g := newRig(t, rigOptions{request: &f})
	const size = 64 << 20
	mem := make([]byte, size)
	reg := g.u.register(mem, fabric.RemoteRead)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	// The first fills the socket; four more wait; one more is too many. Which one
	// that is depends on whether the first is still being answered.
	for range 6 {
		g.read(wire.Read{SinkSTag: 1, Size: size, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	}
	var te *terminateError
	if err := g.u.ended(); !errors.As(err, &te) || te.Code != wire.CodeNoBuffer {
		t.Errorf("Closed(%v)", err)
	}
	runtime.ReadMemStats(&after)
	if grew := int64(after.TotalAlloc - before.TotalAlloc); grew > 8<<20 {
		t.Errorf("%d octets allocated for Responses", grew)
	}
	runtime.KeepAlive(mem)
}

func TestS22_HugeReads(t *testing.T) {
	g := newRig(t, rigOptions{})
	reg := g.u.register(make([]byte, 64), fabric.RemoteRead)
	g.read(wire.Read{SinkSTag: 1, Size: 1<<32 - 1, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	g.killed(wire.CodeReadBounds)
}

// S23 and S24: queues belong to a connection. One that is flooded ends alone.
func TestS23_FloodedAlone(t *testing.T) {
	on := newLoop(t)
	p := newProvider(Options{})
	var us []*user
	accept := make(chan *user, 2)
	addr := listen(t, p, fabric.ListenOptions{}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		u := <-accept
		return u.loop, u
	})
	var raws []*rawPeer
	for range 2 {
		u := newUser(t, on)
		u.receives(4, 64)
		accept <- u
		r := rawDial(t, addr)
		if _, err := r.request(plain()); err != nil {
			t.Fatal(err)
		}
		us, raws = append(us, u), append(raws, r)
	}
	for range 5 {
		raws[0].send(1)
	}
	raws[0].wantTerminate(wire.CodeNoBuffer)
	us[0].ended()
	raws[1].send(2)
	us[1].good(1)
}

func TestS24_CompletionsBounded(t *testing.T) {
	q, _ := bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4})
	r := &rawPeer{t: t, crc: true, msn: [3]uint32{1, 1, 1}}
	// Completions that were not taken count as posted.
	for i := range 8 {
		err := q.postReceive(uint64(i+1), make([]byte, 8))
		if want := i >= 4; errors.Is(err, fabric.ErrQueueFull) != want {
			t.Errorf("Receive %d: %v", i, err)
		}
		if err == nil {
			q.input(r.seal(r.sendHead(wire.OpSend, true, 0, 0, 1), 1))
		}
		if err := q.post(uint64(i+1), wire.OpSend, nil, 0, 0); errors.Is(err, fabric.ErrQueueFull) != (i >= 4) {
			t.Errorf("Send %d: %v", i, err)
		}
		for out := q.output(); len(out) > 0; out = q.output() {
			n := 0
			for _, p := range out {
				n += len(p)
			}
			q.wrote(n)
		}
	}
	if n := len(q.take()); n != 8 {
		t.Errorf("%d completions, want 8", n)
	}
	if err := q.postReceive(1, nil); err != nil {
		t.Error(err)
	}
}

// refusals counts the connections that a listener refused, by reason.
type refusals struct{ address, conns, starting, addr, timeout, request atomic.Int32 }

func (r *refusals) refused(_ netip.AddrPort, reason string, _ error) {
	map[string]*atomic.Int32{
		refusedAddress: &r.address, refusedConnections: &r.conns, refusedStarting: &r.starting,
		refusedStartingAddr: &r.addr, refusedTimeout: &r.timeout, refusedRequest: &r.request,
	}[reason].Add(1)
}

// S25: connections whose peer sends nothing, or octets one by one, are bounded in number
// and time.
func TestS25_SilentStrangers(t *testing.T) {
	var ref refusals
	p := newProvider(Options{AcceptTimeout: 300 * time.Millisecond})
	addr := listen(t, p, fabric.ListenOptions{MaxStarting: 64, MaxStartingPerAddr: 32, Refused: ref.refused}, fabric.ConnOptions{},
		func(fabric.Incoming) (loop.Loop, fabric.Handler) {
			t.Error("a stranger got through")
			return nil, nil
		})
	before := runtime.NumGoroutine()
	const n = 1000
	var conns []net.Conn
	for i := range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		if g := runtime.NumGoroutine(); g > before+2*64+8 { // those that were closed may not have ended
			t.Fatalf("%d goroutines after %d connections", g, i)
		}
	}
	testkit.Eventually(t, "all are gone", func() bool {
		return int(ref.addr.Load()+ref.starting.Load()+ref.timeout.Load()) == n
	})
	if ref.timeout.Load() == 0 || ref.addr.Load() == 0 {
		t.Errorf("%d timed out, %d were too many", ref.timeout.Load(), ref.addr.Load())
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("a silent stranger was answered")
		}
	}
	if c := p.limits.conns.Load(); c != 0 {
		t.Errorf("%d connections still counted", c)
	}
	sendSlowly(t, addr, &ref.timeout)
}

// S25, too: silent connections from many addresses keep no honest peer out, from whichever address it
// comes. They pay for each other, the oldest of the address with the most first.
func TestSilentCrowd(t *testing.T) {
	var ref refusals
	p := newProvider(Options{AcceptTimeout: time.Minute})
	o := fabric.ListenOptions{MaxStarting: 128, MaxStartingPerAddr: 16, Refused: ref.refused}
	l, err := p.Listen("127.0.0.1:0", withLimits(o), func(in fabric.Incoming) {
		if err := in.Reject([]byte("heard")); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialFrom := func(i int) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i))}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i := range 300 {
		defer dialFrom(1 + i%20).Close()
	}
	testkit.Eventually(t, "the limit is reached", func() bool { return ref.starting.Load()+ref.addr.Load() >= 300-128 })
	for _, from := range []int{99, 1, 99} {
		for range 10 {
			r := newRaw(t, dialFrom(from))
			if f, err := r.request(plain()); err != nil || string(f.Private) != "heard" {
				t.Fatalf("an honest peer at 127.0.1.%d: Reply %+v, %v", from, f, err)
			}
			r.nc.Close()
		}
	}
	ll := l.(*listener)
	ll.mu.Lock()
	defer ll.mu.Unlock()
	for i := range 20 {
		if n := ll.silent.Count(netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + i)})); n > 7 {
			t.Errorf("address %d has %d of 128 start-ups", 1+i, n)
		}
	}
}

// sendSlowly sends a Request octet by octet, and checks that the deadline is for the
// whole Request.
func sendSlowly(t *testing.T, addr string, timedOut *atomic.Int32) {
	timeouts := timedOut.Load()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := plain()
	f.Private = make([]byte, 400)
	for i, b := range f.Append(nil) {
		if timedOut.Load() > timeouts {
			break
		}
		if i == 400 {
			t.Fatal("a slow stranger stays")
		}
		_, _ = c.Write([]byte{b})         // until the connection is reset
		time.Sleep(30 * time.Millisecond) // how slowly the stranger sends
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a slow Request was answered")
	}
}

// S26: a peer that asks and never reads ends in time, with flat memory.
func TestS26_NeverReads(t *testing.T) {
	const size = 64 << 20
	mem := make([]byte, size)
	ask := func(o Options) *rig {
		g := newRig(t, rigOptions{provider: o})
		reg := g.u.register(mem, fabric.RemoteRead)
		g.read(wire.Read{SinkSTag: 1, Size: size, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
		return g
	}
	g := ask(Options{ProgressTimeout: 300 * time.Millisecond})
	if err := g.u.ended(); !errors.Is(err, errStalled) {
		t.Errorf("Closed(%v), want %v", err, errStalled)
	}
	g.flushed2(8)

	// Our side goes on listening meanwhile.
	g = ask(Options{})
	testkit.Eventually(t, "the socket is full", func() (full bool) {
		g.u.do(func(c fabric.Conn) { full = c.(*conn).blocked })
		return full
	})
	g.send(1)
	g.u.good(1)
}

// flushed2 is flushed for a test that has taken some completions.
func (g *rig) flushed2(n int) {
	g.t.Helper()
	g.u.mu.Lock()
	defer g.u.mu.Unlock()
	if len(g.u.cs) != n {
		g.t.Errorf("%d completions, want %d", len(g.u.cs), n)
	}
}

// S27: a peer that stops inside an FPDU ends in time; one that is idle does not.
func TestS27_SlowSender(t *testing.T) {
	o := rigOptions{provider: Options{ProgressTimeout: 200 * time.Millisecond}}
	idle := newRig(t, o)
	g := newRig(t, o)
	g.write(g.seal(g.sendHead(wire.OpSend, true, 0, 0, 100), make([]byte, 100)...)[:50])
	if err := g.u.ended(); !errors.Is(err, errStalled) {
		t.Errorf("Closed(%v), want %v", err, errStalled)
	}
	if _, err := g.next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("want RST, got %v", err)
	}
	idle.send(1)
	idle.u.good(1)
	if time.Since(idle.u.c.(*conn).last) > time.Minute {
		t.Error("LastActivity")
	}
}

// S28: errors of peers are logged, not too often, and without octets of the peer.
func TestS28_LogRate(t *testing.T) {
	var lines atomic.Int32
	log := zerolog.New(writerFunc(func(b []byte) (int, error) {
		lines.Add(1)
		if len(b) > 400 || bytes.Contains(b, []byte("secret")) {
			t.Errorf("log line %s", b)
		}
		return len(b), nil
	}))
	g := newRig(t, rigOptions{provider: Options{Log: log}})
	c := g.u.c.(*conn)
	for range 500 {
		c.p.logEnd(c, &terminateError{Code: wire.CodeMSN, Raw: []byte("secret")})
	}
	if n := lines.Load(); n < 1 || n > loglimit.Burst+1 {
		t.Errorf("%d lines", n)
	}
	if _, dropped := c.p.logs.Allow(time.Now().Add(time.Minute)); dropped < 480 {
		t.Errorf("%d suppressed", dropped)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// S29: LastActivity moves when octets of the peer arrive.
func TestS29_LastActivity(t *testing.T) {
	g := newRig(t, rigOptions{})
	var before, after time.Time
	began := time.Now()
	g.send(1)
	g.u.good(1)
	g.u.do(func(c fabric.Conn) { before = c.LastActivity() })
	between := time.Now()
	g.send(1)
	g.u.good(2)
	g.u.do(func(c fabric.Conn) { after = c.LastActivity() })
	ended := time.Now()
	if before.Before(began) || before.After(between) || after.Before(between) || after.After(ended) {
		t.Errorf("the first message from %v to %v came at %v, the second one to %v at %v", began, between, before, ended, after)
	}
}

// S30: memory does not grow with the input of peers.
func TestS30_NoGrowth(t *testing.T) {
	q, _ := bareQP(qpConfig{crc: false, receives: 4, sends: 4, handlesN: 16, ird: 4})
	r := &rawPeer{t: t, msn: [3]uint32{1, 1, 1}}
	buf := make([]byte, 64)
	spin := func(n int) {
		for range n {
			reg, err := q.register(buf, fabric.RemoteRead|fabric.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			_ = q.postReceive(1, buf)
			stag := uint32(reg.Handle)
			q.input(r.tagged(wire.OpWrite, true, stag, reg.Offset, 1, 2, 3, 4))
			q.input(r.tagged(wire.OpWrite, true, rand.Uint32(), rand.Uint64()))
			q.input(r.seal(wire.AppendReadRequest(nil, r.msn[1], wire.Read{Size: 4, SrcSTag: stag, SrcTO: reg.Offset})))
			r.msn[1]++
			for out := q.output(); len(out) > 0; out = q.output() {
				k := 0
				for _, p := range out {
					k += len(p)
				}
				q.wrote(k)
			}
			q.input(r.seal(r.sendHead(wire.OpSendInvalidate, true, stag, 0, 0)))
			q.take()
		}
	}
	spin(3 * retiredMax)
	slots, regions, irq := len(q.stags.slots), len(q.stags.regions), len(q.irq.buf)
	spin(3 * retiredMax)
	if q.err != nil {
		t.Fatal(q.err)
	}
	if len(q.stags.slots) != slots || len(q.stags.regions) != regions || len(q.irq.buf) != irq || slots > 4*retiredMax || q.stags.used > retiredMax+16 {
		t.Errorf("%d slots (%d used), %d regions, %d Reads; were %d, %d, %d", len(q.stags.slots), q.stags.used, len(q.stags.regions), len(q.irq.buf), slots, regions, irq)
	}
}

// S31: limits hold over all connections, and a connection that ends is counted off.
func TestS31_ProviderLimits(t *testing.T) {
	p := newProvider(Options{MaxConnections: 3, MaxHandles: 5, MaxRegistered: 1000})
	on := newLoop(t)
	var ref refusals
	var acceptors []*user
	accepted := make(chan *user, 8)
	addr := listen(t, p, fabric.ListenOptions{Refused: ref.refused}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		u := newUser(t, on)
		accepted <- u
		return on, u
	})
	a := newUser(t, on)
	if _, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, a); err != nil { // both ends count
		t.Fatal(err)
	}
	acceptors = append(acceptors, <-accepted)
	b := newUser(t, on)
	if _, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, b); err == nil {
		t.Error("a fourth connection was made")
	}
	testkit.Eventually(t, "the listener refuses it", func() bool { return ref.conns.Load() > 0 })
	acceptors[0].wait("Setup", func() bool { return acceptors[0].c != nil })
	a.do(func(c fabric.Conn) {
		if _, err := c.Register(make([]byte, 1001), fabric.RemoteRead); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("1001 octets: %v", err)
		}
		for range 2 {
			if _, err := c.Register(make([]byte, 400), fabric.RemoteRead); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Register(make([]byte, 400), fabric.RemoteRead); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("1200 octets: %v", err)
		}
		for i := range 4 {
			_, err := acceptors[0].c.Register(nil, fabric.RemoteRead)
			if want := i == 3; errors.Is(err, fabric.ErrLimit) != want {
				t.Errorf("handle %d: %v", i+3, err)
			}
		}
		c.Close(nil)
	})
	a.ended()
	acceptors[0].ended()
	testkit.Eventually(t, "everything is given back", func() bool {
		return p.limits.conns.Load() == 0 && p.limits.handles.Load() == 0 && p.limits.octets.Load() == 0
	})
}

// TestListenLimit checks MaxConnections of a listener.
func TestListenLimit(t *testing.T) {
	p := newProvider(Options{})
	on := newLoop(t)
	var ref refusals
	addr := listen(t, p, fabric.ListenOptions{MaxConnections: 2, Refused: ref.refused}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		return on, newUser(t, on)
	})
	for i := range 3 {
		_, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, newUser(t, on))
		if want := i == 2; (err != nil) != want {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	// The connection is closed before it is counted.
	testkit.Eventually(t, "the refusal is counted", func() bool { return ref.conns.Load() > 0 })
}

// S33: the access list decides before anything is answered.
func TestS33_AccessList(t *testing.T) {
	var ref refusals
	var asked atomic.Value
	addr := listen(t, newProvider(Options{}), fabric.ListenOptions{
		Allow:   func(a netip.Addr) bool { asked.Store(a); return false },
		Refused: ref.refused,
	}, fabric.ConnOptions{}, nil)
	r := rawDial(t, addr)
	f := plain()
	_, _ = r.nc.Write(f.Append(nil))
	if _, err := r.nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("want the end, got %v", err)
	}
	testkit.Eventually(t, "it is counted", func() bool { return ref.address.Load() == 1 })
	if a := asked.Load().(netip.Addr); a != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("Allow was asked about %v", a)
	}
}
