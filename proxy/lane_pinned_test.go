package proxy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// shared is how many connections the tests' upstreams have beside pinned ones.
const shared = 4

// A pinning is a proxy to an RDMA server that can call back.
type pinning struct {
	*proxytest.Harness
	p      *proxy.Proxy
	server *proxytest.RDMAServer
	back   *proxytest.Callbacks
}

func newPinning(t testing.TB, budget int64, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions)) *pinning {
	t.Helper()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	lp := fabrictest.NewLoopback()
	return pinningOver(t, budget, lp, lp, l, "storage", b, change)
}

func pinningOver(t testing.TB, budget int64, client, server fabric.Provider, l loop.Loop, addr string, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions)) *pinning {
	t.Helper()
	x := &pinning{Harness: proxytest.NewHarness(t, budget), back: proxytest.NewCallbacks(server)}
	x.server = x.RDMAServer(x.back, []loop.Loop{l}, addr, 32, b)
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
	uo := settings.UpstreamOptions{
		Name: "storage", RDMA: true, Provider: client, Endpoints: []string{x.server.Addr()}, Connections: shared,
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, Mode: settings.ModePinned,
	}
	if addr == "storage" {
		uo.Endpoints[0] = addr
	}
	if change != nil {
		change(&lo, &uo)
	}
	x.p = x.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
	x.Eventually("all shared connections are there", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Usable == shared })
	return x
}

func (x *pinning) client() *proxytest.Client { return x.Client(x.p.Addr("nfs")) }

func (x *pinning) pinned() int { return x.p.Status(status.Query{}).Upstreams[0].Pinned }

// metric is the value of a series, or the sum of those that begin so.
func metric(h *proxytest.Harness, name string) (n int) {
	w := httptest.NewRecorder()
	h.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "rdmabridge_"+name) {
			continue
		}
		if f := strings.Fields(line); len(f) == 2 {
			v, _ := strconv.ParseFloat(f[1], 64)
			n += int(v)
		}
	}
	return n
}

// TestPinnedModes: which clients have a pinned connection, and that it ends with its
// client.
func TestPinnedModes(t *testing.T) {
	t.Parallel()
	v3 := proxytest.GetattrCall(1)
	v40 := proxytest.CompoundCall(1, 0)
	v42 := proxytest.SequenceCall(3)
	krb5p := proxytest.GSSCall(v42, 1, 3)
	null := proxytest.CallHeader(nil, 4, oncrpc.ProgramNFS, 4, 0)
	for _, tt := range []struct {
		name  string
		mode  settings.Mode
		calls [][]byte
		want  int
	}{
		{"auto, NFSv3", settings.ModeAuto, [][]byte{v3}, 0},
		{"auto, NULL of NFSv4", settings.ModeAuto, [][]byte{null}, 0},
		{"auto, NFSv4.0", settings.ModeAuto, [][]byte{null, v40, v40}, 0},
		{"auto, NFSv4.0 with krb5p", settings.ModeAuto, [][]byte{v40, krb5p}, 0},
		{"shared, NFSv4.2", settings.ModeShared, [][]byte{v42, krb5p}, 0},
		{"pinned, NFSv3", settings.ModePinned, [][]byte{v3}, 1},
		{"pinned, NFSv4.2", settings.ModePinned, [][]byte{v42, v3}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newPinning(t, budget, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Mode = tt.mode })
			c := x.client()
			for _, m := range tt.calls {
				check(t, c, m)
			}
			if n := x.pinned(); n != tt.want {
				t.Errorf("%d connections of the client's own, want %d", n, tt.want)
			}
			if n := x.server.Connections(); n != shared+tt.want {
				t.Errorf("%d connections at the server, want %d", n, shared+tt.want)
			}
			if n := metric(x.Harness, "upstream_connections"); n != shared+tt.want {
				t.Errorf("%d connections counted, want %d", n, shared+tt.want)
			}
			c.Close()
			x.Eventually("the connection has gone", func() bool { return x.pinned() == 0 && x.server.Connections() == shared })
			if n := metric(x.Harness, "upstream_connections"); n != shared {
				t.Errorf("%d connections counted at the end", n)
			}
		})
	}
}

// TestPinnedRDMAClients: so have those of an RDMA listener, in one process with others.
func TestPinnedRDMAClients(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	lp := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	h.RDMAServer(lp, []loop.Loop{l}, "storage", 8, proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "middle", Address: "middle", RDMA: true, Provider: lp, Upstream: "storage"},
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "middle"},
	}, []settings.UpstreamOptions{
		{Name: "storage", RDMA: true, Provider: lp, Endpoints: []string{"storage"}, Mode: settings.ModePinned},
		{Name: "middle", RDMA: true, Provider: lp, Endpoints: []string{"middle"}, Mode: settings.ModePinned},
	})
	check(t, h.Client(p.Addr("nfs")), proxytest.SequenceCall(1))
	st := p.Status(status.Query{})
	if a, b := st.Upstreams[0], st.Upstreams[1]; a.Name != "middle" || a.Pinned != 1 || b.Pinned != 1 {
		t.Errorf("%s has %d pinned connections and %s %d, want 1 of both", a.Name, a.Pinned, b.Name, b.Pinned)
	}
}

// TestPinnedEndpoints: clients are spread over the addresses of a server.
func TestPinnedEndpoints(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	lp := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	a := h.RDMAServer(lp, []loop.Loop{l}, "a", 8, proxytest.Behaviour{})
	b := h.RDMAServer(lp, []loop.Loop{l}, "b", 8, proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", RDMA: true, Provider: lp, Endpoints: []string{"a", "b"}, Failover: true, Connections: shared, Mode: settings.ModePinned}})
	h.Eventually("all shared connections are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == shared })
	for range 6 {
		check(t, h.Client(p.Addr("nfs")), proxytest.SequenceCall(1))
	}
	if m, n := a.Connections(), b.Connections(); m != shared/2+3 || n != shared/2+3 {
		t.Errorf("%d connections to the one and %d to the other, want %d to both", m, n, shared/2+3)
	}
}

// TestPinnedLimit: a client more than may be is closed; when another goes it may
// come.
func TestPinnedLimit(t *testing.T) {
	t.Parallel()
	x := newPinning(t, budget, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Pinned = 3 })
	var cs []*proxytest.Client
	for range 3 {
		c := x.client()
		check(t, c, proxytest.SequenceCall(1))
		cs = append(cs, c)
	}
	for range 5 {
		if _, err := x.client().Call(proxytest.SequenceCall(1)); err == nil || errors.Is(err, proxytest.ErrTimeout) {
			t.Errorf("a fourth client of 3: %v, want its connection closed", err)
		}
	}
	if n := metric(x.Harness, "upstream_pinned_refused_clients_total"); n != 5 {
		t.Errorf("%d refusals counted, want 5", n)
	}
	if n := metric(x.Harness, "upstream_pinned_connections"); n != 3 {
		t.Errorf("%d connections counted, want 3", n)
	}
	cs[1].Close()
	x.Eventually("there is room", func() bool { return x.pinned() == 2 })
	check(t, x.client(), proxytest.SequenceCall(1))
	check(t, cs[0], proxytest.SequenceCall(2))
}

// TestPinnedLimitOfMemory: idle pinned connections leave most of the memory for
// Replies to Replies.
func TestPinnedLimitOfMemory(t *testing.T) {
	t.Parallel()
	const budget = 64 << 20
	x := newPinning(t, budget, proxytest.Behaviour{}, nil)
	before := x.Arena.Stats().Used
	var n int
	first := x.client()
	check(t, first, proxytest.SequenceCall(1))
	for n = 1; n < 200; n++ {
		if _, err := x.client().Call(proxytest.SequenceCall(1)); err != nil {
			break
		}
	}
	if used := x.Arena.Stats().Used - before; used > budget/8+1<<20 || n < 30 || n == 200 {
		t.Errorf("%d clients let in, whose connections take %d octets", n, used)
	}
	for i := range uint32(20) {
		check(t, first, proxytest.ReadCall(i+1, 0, 1<<20))
	}
}

// TestPinnedReceives: memory that a busy client needed goes when it is idle.
func TestPinnedReceives(t *testing.T) {
	t.Parallel()
	var gate proxytest.Gate
	x := newPinning(t, budget, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.SlowStart = 1024 })
	c := x.client()
	check(t, c, proxytest.SequenceCall(1))
	check(t, c, proxytest.SequenceCall(2))
	idle := x.Arena.Stats().Used
	gate.Shut()
	defer gate.Open()
	var chs []<-chan []byte
	for i := range uint32(32) {
		ch, err := c.Go(proxytest.SequenceCall(i + 10))
		if err != nil {
			t.Fatal(err)
		}
		chs = append(chs, ch)
	}
	x.Eventually("all are at the server", func() bool { return x.server.Calls.Load() == 34 })
	if busy := x.Arena.Stats().Used; busy < idle+20*(16<<10) {
		t.Errorf("%d octets used with 32 Calls outstanding, %d without: Receives are missing", busy, idle)
	}
	gate.Open()
	for _, ch := range chs {
		<-ch
	}
	x.Eventually("they have gone", func() bool { return x.Arena.Stats().Used <= idle+64<<10 })
}

// TestPinnedComeAndGo: nothing is left of clients that came and went, however they
// did.
func TestPinnedComeAndGo(t *testing.T) {
	x := newPinning(t, budget, proxytest.Behaviour{Delay: time.Millisecond}, nil)
	first := x.client()
	check(t, first, proxytest.GetattrCall(1))
	first.Close()
	x.Eventually("the first has gone", func() bool { return x.pinned() == 0 && x.server.Connections() == shared })
	// Caches are no leaks.
	goroutines, used := runtime.NumGoroutine(), x.Arena.Stats().Used
	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range uint32(200) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := proxytest.DialClient(x.p.Addr("nfs"))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for j := range i % 5 { // some close before the connection is there
				ch, err := c.Go(proxytest.SequenceCall(i<<8 | j + 1))
				if err == nil && (i+j)%3 > 0 {
					if _, ok := <-ch; ok {
						answered.Add(1)
					}
				}
			}
			if i%7 == 0 {
				x.server.DropConnections(errors.New("dropped by the test"))
			}
		}()
	}
	wg.Wait()
	if answered.Load() == 0 {
		t.Error("no Call was answered")
	}
	x.Eventually("all connections have gone", func() bool {
		return x.pinned() == 0 && x.server.Connections() == shared && x.p.Status(status.Query{}).Listeners[0].Clients <= 1
	})
	x.Eventually("all memory is back", func() bool { return x.Arena.Stats().Used <= used+256<<10 })
	x.Eventually("all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	for name, want := range map[string]int{
		"upstream_connections": shared, "upstream_queued_calls": 0, "upstream_credits_used": 0, "upstream_pinned_connections": 0,
	} {
		x.Eventually(fmt.Sprint(name, " is ", want, " at the end"), func() bool { return metric(x.Harness, name) == want })
	}
}

// TestPinnedClose: a proxy that is closed waits for pinned connections.
func TestPinnedClose(t *testing.T) {
	t.Parallel()
	x := newPinning(t, budget, proxytest.Behaviour{}, nil)
	for range 20 {
		check(t, x.client(), proxytest.SequenceCall(1))
	}
	if err := x.p.Close(); err != nil {
		t.Error(err)
	}
	if n := x.pinned(); n != 0 {
		t.Errorf("%d pinned connections after Close", n)
	}
}

// TestPinnedDrain: idle clients with a connection of their own are closed, others
// after their last Reply.
func TestPinnedDrain(t *testing.T) {
	t.Parallel()
	x := newPinning(t, budget, proxytest.Behaviour{Delay: 200 * time.Millisecond}, nil)
	idle, busy := x.client(), x.client()
	check(t, idle, proxytest.SequenceCall(1))
	m := proxytest.SequenceCall(2)
	ch, err := busy.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	x.Eventually("the Call is at the server", func() bool { return x.server.Calls.Load() == 2 })
	for _, c := range []*proxytest.Client{idle, busy} {
		go func() {
			for range c.Calls { // until the connection ends
			}
			c.Close()
		}()
	}
	if err := x.p.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("the Call in flight was not answered before its client was closed")
	}
	x.Eventually("the connections have gone", func() bool { return x.pinned() == 0 })
}

// TestPinnedUnavailable: a client whose connection cannot be made waits as others
// do.
func TestPinnedUnavailable(t *testing.T) {
	t.Parallel()
	x := newPinning(t, budget, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.UnavailableAfter = 400 * time.Millisecond
	})
	x.server.Close()
	x.Eventually("the connections are gone", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Usable == 0 })
	began := time.Now()
	if _, err := x.client().Call(proxytest.SequenceCall(5)); err == nil || errors.Is(err, proxytest.ErrTimeout) {
		t.Errorf("a Call to nobody: %v, want the connection closed", err)
	}
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("the client was closed after %v already", d)
	}
	x.Eventually("the attempt has ended", func() bool { return x.pinned() == 0 })
}

// A silence is a server that answers nothing while it is true.
type silence struct {
	atomic.Bool
	met atomic.Int64 // Calls that are not answered, ever; probes aside
}

func (s *silence) intercept(c *oncrpc.Call) ([]byte, bool) {
	if !s.Load() {
		return nil, false
	}
	if c.Procedure != 0 {
		s.met.Add(1)
	}
	return nil, true
}

// TestPinnedLost: a client keeps its connection when the server's is lost, if all
// its Calls can be sent again.
func TestPinnedLost(t *testing.T) {
	t.Parallel()
	var silent silence
	x := newPinning(t, budget, proxytest.Behaviour{Intercept: silent.intercept}, nil)
	sequenced, gss, idle := x.client(), x.client(), x.client()
	check(t, idle, proxytest.SequenceCall(1))
	silent.Store(true)
	m, signed := proxytest.SequenceCall(2), proxytest.GSSCall(proxytest.SequenceCall(3), 1, 1)
	a, err := sequenced.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	b, err := gss.Go(signed)
	if err != nil {
		t.Fatal(err)
	}
	x.Eventually("both are at the server", func() bool { return silent.met.Load() == 2 })
	silent.Store(false)
	x.server.DropConnections(errors.New("dropped by the test"))
	if r, ok := <-a; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("a COMPOUND with SEQUENCE was not sent again")
	}
	if _, ok := <-b; ok {
		t.Error("a Call under RPCSEC_GSS was sent again: the server drops it, or worse")
	}
	// SEQUENCE protects the COMPOUND that it begins, whether the proxy knows the rest or not.
	silent.Store(true)
	m = proxytest.CompoundCall(6, 2, proxytest.Sequence([16]byte{1}, 6, 6), testkit.Words(200, 1))
	if a, err = sequenced.Go(m); err != nil {
		t.Fatal(err)
	}
	x.Eventually("it is at the server", func() bool { return silent.met.Load() == 3 })
	silent.Store(false)
	x.server.DropConnections(errors.New("dropped by the test"))
	if r, ok := <-a; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("a COMPOUND with SEQUENCE and an unknown operation was not sent again")
	}
	check(t, idle, proxytest.SequenceCall(4))
	check(t, sequenced, proxytest.SequenceCall(5))
	if n := x.server.XIDs()[3]; n != 1 {
		t.Errorf("the GSS Call came %d times", n)
	}
	x.Eventually("two are left", func() bool { return x.pinned() == 2 && x.server.Connections() == shared+2 })
}

// TestPinnedRepeated: what a client sends again on its next connection while it is
// in flight for the one before is answered there at once, under the same XID, though
// the server never answers on the RDMA connection that it went out on.
func TestPinnedRepeated(t *testing.T) {
	t.Parallel()
	var silent silence
	silent.Store(true)
	x := newPinning(t, budget, proxytest.Behaviour{Intercept: silent.intercept}, anywhere)
	port := x.KeptPort()
	m := proxytest.SequenceCall(7)
	a := port.Client(x.p.Addr("nfs"))
	if _, err := a.Go(m); err != nil {
		t.Fatal(err)
	}
	x.Eventually("it is at the server", func() bool { return silent.met.Load() == 1 })
	silent.Store(false)
	b := port.Client(x.p.Addr("nfs")) // the first connection is as alive as can be seen
	check(t, b, m)
	a.Close()
	if n := len(x.server.XIDs()); n != 1 {
		t.Errorf("the server saw %d XIDs, want 1", n)
	}
	x.Eventually("one connection is left", func() bool { return x.pinned() == 1 && x.server.Connections() == shared+1 })
	check(t, b, proxytest.SequenceCall(8))
}

// TestPinnedMemoryRunsOut: clients with connections of their own take turns when
// memory for Replies is spent.
func TestPinnedMemoryRunsOut(t *testing.T) {
	x := newPinning(t, 48<<20, proxytest.Behaviour{Delay: 5 * time.Millisecond}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Mode = settings.ModePinned })
	var wg sync.WaitGroup
	for i := range 8 {
		c := x.client()
		for j := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for k := range 10 {
					check(t, c, proxytest.EchoCall(uint32(i<<16|j<<8|k+1), 20, 60, 0))
				}
			}()
		}
	}
	wg.Wait()
	if metric(x.Harness, "upstream_rdma_memory_waits_total") == 0 {
		t.Error("memory was not short: this tests nothing")
	}
	// A few hundred in practice, and a hundred thousand if they do not wait.
	if n := metric(x.Harness, "upstream_retries_total"); n > 10000 {
		t.Errorf("640 Calls were tried again %d times", n)
	}
}

// TestSessionBoundsReplies: the limits of CREATE_SESSION bound the Reply chunks of Calls
// whose Replies nothing else bounds.
func TestSessionBoundsReplies(t *testing.T) {
	t.Parallel()
	id := [16]byte{0xab, 1, 2, 3}
	long := make([]byte, 40<<10)
	x := newPinning(t, budget, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		args := c.Message[c.Args:]
		switch {
		case binary.BigEndian.Uint32(args[12:]) == 43: // CREATE_SESSION
			r := testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, 0, 1, 43, 0)
			r = append(r, id[:]...)
			r = append(r, testkit.Words(1, 0)...)
			for range 2 {
				r = append(r, testkit.Words(0, 1<<20, 16<<10, 4096, 16, 64, 0)...)
			}
			return r, true
		case len(args) > 48: // GETATTR
			return append(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, uint32(len(long))), long...), true
		}
		return nil, false
	}}, nil)
	c := x.client()
	acl := append(testkit.Words(9, 1), testkit.Words(1<<12)...)
	getattr := func(xid uint32) []byte {
		return proxytest.CompoundCall(xid, 1, proxytest.Sequence(id, xid, 0), testkit.Words(24), acl)
	}
	r, err := c.Call(getattr(1))
	if err != nil || len(r) < len(long) {
		t.Fatalf("before the session is known: %d octets, %v", len(r), err)
	}
	create := testkit.Words(43, 0, 0, 1, 3)
	for range 2 {
		create = append(create, testkit.Words(0, 1<<20, 1<<20, 4096, 16, 64, 0)...)
	}
	create = append(create, testkit.Words(0x40000000, 0)...)
	if r, err := c.Call(proxytest.CompoundCall(2, 1, create)); err != nil || len(r) < 100 {
		t.Fatalf("CREATE_SESSION: %d octets, %v", len(r), err)
	}
	// 40 KiB do not fit a Reply chunk for 16 KiB, and the server has no
	// other way to send them.
	if r, err := c.Call(getattr(3)); err != nil || len(r) != 24 || binary.BigEndian.Uint32(r[20:]) != oncrpc.SystemError {
		t.Errorf("a Reply beyond what the session allows: %d octets, %v; want SYSTEM_ERR", len(r), err)
	}
}

// TestBackChannelSizes: a CREATE_SESSION asks the server for no longer reverse Calls than the way
// to the client carries, and is not changed otherwise.
func TestBackChannelSizes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                 string
		clientRDMA, overRDMA bool
		asked, want          uint32
	}{
		{"TCP to RDMA", false, true, 8192, 4096 - 28},
		{"TCP to RDMA, asked for less", false, true, 2048, 2048},
		{"TCP to TCP", false, false, 8192, 8192},
		{"RDMA to TCP", true, false, 8192, 1024 - 28},
		{"RDMA to RDMA", true, true, 8192, 1024 - 28},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			seen := make(chan []byte, 1)
			b := proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
				seen <- bytes.Clone(c.Message[c.Args:])
				return testkit.Words(c.XID, 1, 0, 0, 0, 0, 10004, 0, 0), true
			}}
			l := fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			lp := fabrictest.NewLoopback()
			up := settings.UpstreamOptions{Name: "storage"}
			if tt.overRDMA {
				h.RDMAServer(lp, []loop.Loop{l}, "storage", 32, b)
				up.RDMA, up.Provider, up.Endpoints = true, lp, []string{"storage"}
			} else {
				up.Endpoints = []string{h.TCPServer(b).Addr()}
			}
			lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
			if tt.clientRDMA {
				lo.Address, lo.RDMA, lo.Provider = "front", true, lp
			}
			p := h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{up})
			channel := testkit.Words(0, tt.asked, 8192, 8192, 16, 64, 1, 7)
			create := bytes.Join([][]byte{testkit.Words(43, 0, 0, 1, 3), channel, channel, testkit.Words(0x40000000, 1, 0)}, nil)
			m := proxytest.CompoundCall(2, 1, create)
			var err error
			if tt.clientRDMA {
				var c *proxytest.RDMAClient
				if c, err = h.DialRDMA(lp, l, "front", rdmaside.RequesterOptions{IdleReceives: 4, CallInline: 1024, ReplyInline: 1024}); err == nil {
					t.Cleanup(func() { _ = c.Close() })
					_, err = c.Call(m)
				}
			} else {
				_, err = h.Client(p.Addr("nfs")).Call(m)
			}
			if err != nil {
				t.Fatal(err)
			}
			want := testkit.Words(0, 1, 1) // tag, minor version, operations
			want = append(want, create...)
			at := len(want) - 12 - len(channel) + 4
			binary.BigEndian.PutUint32(want[at:], tt.want)
			if got := <-seen; !bytes.Equal(got, want) {
				t.Errorf("the server got\n%x\nwant\n%x", got, want)
			}
		})
	}
}

// over runs f with a client that has a connection of its own, over both providers
// there are.
func over(t *testing.T, change func(*settings.ListenerOptions, *settings.UpstreamOptions), f func(t *testing.T, x *pinning, c *proxytest.Client, back *proxytest.Callback)) {
	run := func(name string, open func(t *testing.T) *pinning) {
		t.Run(name, func(t *testing.T) {
			x := open(t)
			c := x.client()
			check(t, c, proxytest.SequenceCall(1))
			conns := x.back.Conns()
			if len(conns) != shared+1 {
				t.Fatalf("%d connections", len(conns))
			}
			f(t, x, c, conns[shared])
		})
	}
	run("loopback", func(t *testing.T) *pinning { return newPinning(t, budget, proxytest.Behaviour{}, change) })
	run("iwarp", func(t *testing.T) *pinning {
		l := iwarptest.NewLoop()
		t.Cleanup(l.Stop)
		o := iwarp.Options{}
		return pinningOver(t, budget, proxytest.IWARP(o), proxytest.IWARP(o), l, "127.0.0.1:0", proxytest.Behaviour{}, change)
	})
}

const patience = testkit.Patience

// called waits for the Call want at the client.
func called(t *testing.T, c *proxytest.Client, want []byte) {
	t.Helper()
	if got, err := c.NextCall(patience); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the client was called with %x, %v; want %x", got, err, want)
	}
}

// answered waits for the message want at the server.
func answered(t *testing.T, back *proxytest.Callback, why string, want ...[]byte) {
	t.Helper()
	if got, err := back.Next(patience); err != nil || !bytes.Equal(got, bytes.Join(want, nil)) {
		t.Fatalf("%s: the server got %x, %v; want %x", why, got, err, bytes.Join(want, nil))
	}
}

func plain(xid uint32) []byte { return rpcrdma.AppendPlain(nil, xid, 4) }

func failed(xid, stat uint32) []byte { return oncrpc.AppendAccepted(plain(xid), xid, stat) }

// TestBackChannel: a server calls its client.
func TestBackChannel(t *testing.T) {
	t.Parallel()
	over(t, nil, func(t *testing.T, x *pinning, c *proxytest.Client, back *proxytest.Callback) {
		for xid, n := range []int{0, 1, 100, 1000, 3900, 4100} { // 4100: Linux sends as much as TCP clients allow
			m := proxytest.CallbackCall(uint32(xid), n)
			back.Call(m, 2)
			called(t, c, m)
			r := proxytest.CallbackReply(uint32(xid), n%3900)
			if err := c.Send(r); err != nil {
				t.Fatal(err)
			}
			answered(t, back, "a Reply as it was", plain(uint32(xid)), r)
		}
		// With Calls of both directions outstanding under one XID.
		forward, reverse := proxytest.EchoCall(77, 10, 10, 300), proxytest.CallbackCall(77, 8)
		ch, err := c.Go(forward)
		if err != nil {
			t.Fatal(err)
		}
		back.Call(reverse, 2)
		called(t, c, reverse)
		if err := c.Send(proxytest.CallbackReply(77, 8)); err != nil {
			t.Fatal(err)
		}
		answered(t, back, "the reverse Call", plain(77), proxytest.CallbackReply(77, 8))
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(forward)) {
			t.Error("the forward Call was not answered with its Reply")
		}
		// Four at once, answered the other way round.
		for xid := range uint32(4) {
			back.Call(proxytest.CallbackCall(xid+100, 8), 4)
		}
		for xid := range uint32(4) {
			called(t, c, proxytest.CallbackCall(xid+100, 8))
		}
		for xid := range uint32(4) {
			if err := c.Send(proxytest.CallbackReply(103-xid, 8)); err != nil {
				t.Fatal(err)
			}
			answered(t, back, "in the client's order", plain(103-xid), proxytest.CallbackReply(103-xid, 8))
		}
		if a, b := metric(x.Harness, "upstream_reverse_calls_total"), metric(x.Harness, "upstream_reverse_replies_total"); a != 11 || b != 11 {
			t.Errorf("%d reverse Calls and %d Replies counted, want 11 of both", a, b)
		}
	})
}

// TestBackChannelOfSharedConnections: the proxy refuses Calls on a shared connection, which
// belongs to no client.
func TestBackChannelOfSharedConnections(t *testing.T) {
	t.Parallel()
	x := newPinning(t, budget, proxytest.Behaviour{}, nil)
	check(t, x.client(), proxytest.SequenceCall(1))
	back := x.back.Conns()[0]
	back.Call(proxytest.CallbackCall(5, 8), 2)
	answered(t, back, "on a shared connection", failed(5, oncrpc.ProgramUnavailable))
}

// TestBackChannelRefusals: the proxy refuses messages that it cannot carry, and goes on.
func TestBackChannelRefusals(t *testing.T) {
	t.Parallel()
	over(t, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.CallInline = 4096 }, func(t *testing.T, x *pinning, c *proxytest.Client, back *proxytest.Callback) {
		header := func(xid uint32, p rpcrdma.Proc, edit func(*rpcrdma.Header)) []byte {
			var h rpcrdma.Header
			h.Reset(xid, 2, p)
			edit(&h)
			return h.Append(nil)
		}
		errChunk := func(xid uint32) []byte { return testkit.Words(xid, 1, 4, 4, 2) }
		seg := rpcrdma.Segment{Handle: 7, Length: 4096, Offset: 9}
		m := proxytest.CallbackCall(10, 8)
		back.Send(header(10, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddRead(40, seg) }), m)
		answered(t, back, "a Read chunk", errChunk(10))
		back.Send(header(11, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(seg) }), proxytest.CallbackCall(11, 8))
		answered(t, back, "a Reply chunk", errChunk(11))
		back.Send(header(12, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, seg) }))
		answered(t, back, "RDMA_NOMSG", errChunk(12))

		back.Send(plain(13), m) // the XIDs differ
		back.Send(plain(10), m[:32])
		back.Call(m, 2)
		called(t, c, m)
		if n := metric(x.Harness, `upstream_rdma_dropped_messages_total{reason="reverse"`); n != 2 {
			t.Errorf("%d reverse Calls dropped, want the 2 that are none", n)
		}

		// Answers that are too long, are no Reply, or answer no Call.
		if err := c.Send(proxytest.CallbackReply(10, 5000)); err != nil {
			t.Fatal(err)
		}
		answered(t, back, "an answer that does not fit", failed(10, oncrpc.SystemError))
		back.Call(m, 2)
		called(t, c, m)
		if err := c.Send(proxytest.CallbackReply(10, 8)[:12]); err != nil {
			t.Fatal(err)
		}
		answered(t, back, "an answer cut short", failed(10, oncrpc.SystemError))
		for _, xid := range []uint32{10, 11, 0} {
			if err := c.Send(proxytest.CallbackReply(xid, 8)); err != nil {
				t.Fatal(err)
			}
		}
		check(t, c, proxytest.SequenceCall(2))
		if n := metric(x.Harness, "listener_stray_replies_total"); n != 3 {
			t.Errorf("%d stray Replies counted, want 3", n)
		}
		// The server's next message is the answer to its next Call, and no stray Reply.
		m = proxytest.CallbackCall(12, 8)
		back.Call(m, 2)
		called(t, c, m)
		if err := c.Send(proxytest.CallbackReply(12, 8)); err != nil {
			t.Fatal(err)
		}
		answered(t, back, "after stray Replies", plain(12), proxytest.CallbackReply(12, 8))
		for reason, want := range map[string]int{"chunks": 3, "too_long": 1, "malformed": 1} {
			if n := metric(x.Harness, `upstream_reverse_refused_calls_total{reason="`+reason+`"`); n != want {
				t.Errorf("%d refused for %s, want %d", n, reason, want)
			}
		}
	})
}

// unread is a client at addr that has a connection of its own, and does not take the
// answers that have filled its socket. calls is how many Calls the server has had.
func unread(h *proxytest.Harness, addr string, calls func() int64) net.Conn {
	h.T.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		h.T.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	for i := range uint32(14) { // more than the sockets hold, and less than it may have under way
		m := proxytest.ReadCall(i+1, 0, 1<<20)
		if i == 0 {
			m = proxytest.SequenceCall(1)
		}
		if err := testkit.WriteRecord(c, m); err != nil {
			h.T.Fatal(err)
		}
	}
	h.Eventually("all are answered", func() bool { return calls() == 14 && metric(h, "upstream_credits_used") == 0 })
	h.Eventually("its socket is full", func() bool { return metric(h, "listener_tcp_outbound_buffered_bytes") > 0 })
	return c
}

// TestBackChannelUnread: Calls to a client that does not read are bounded, and the proxy
// refuses the rest.
func TestBackChannelUnread(t *testing.T) {
	x := newPinning(t, budget, proxytest.Behaviour{}, nil)
	used := x.Arena.Stats().Used
	c := unread(x.Harness, x.p.Addr("nfs"), func() int64 { return x.server.Calls.Load() })
	defer c.Close()
	back := x.back.Conns()[shared]
	for xid := range uint32(8) {
		back.Call(proxytest.CallbackCall(xid, 1000), 2)
		x.Eventually("it has come", func() bool { return metric(x.Harness, "upstream_reverse_calls_total") == int(xid)+1 })
	}
	for xid := uint32(8); xid < 20; xid++ {
		back.Call(proxytest.CallbackCall(xid, 1000), 2)
		answered(t, back, "the client has not taken those before", failed(xid, oncrpc.SystemError))
	}
	if n := metric(x.Harness, `upstream_reverse_refused_calls_total{reason="client"`); n != 12 {
		t.Errorf("%d refused for the client, want 12", n)
	}
	c.Close()
	// A shared connection that had two Calls at once for the first time keeps an Exchange more, with its 512 octets. Eight
	// Calls that were kept would be 8 KiB.
	x.Eventually("nothing is left", func() bool { return x.pinned() == 0 && x.Arena.Stats().Used <= used+2048 })
}

// TestBackChannelUnanswered: the oldest Calls that a client does not answer are forgotten.
func TestBackChannelUnanswered(t *testing.T) {
	t.Parallel()
	over(t, nil, func(t *testing.T, x *pinning, c *proxytest.Client, back *proxytest.Callback) {
		for xid := range uint32(30) {
			m := proxytest.CallbackCall(xid, 8)
			back.Call(m, 2)
			called(t, c, m)
		}
		for xid := range uint32(30) { // the last four are waited for
			if err := c.Send(proxytest.CallbackReply(xid, 8)); err != nil {
				t.Fatal(err)
			}
		}
		for xid := uint32(26); xid < 30; xid++ {
			answered(t, back, "one that is waited for", plain(xid), proxytest.CallbackReply(xid, 8))
		}
		if n := metric(x.Harness, "upstream_reverse_unanswered_calls_total"); n != 26 {
			t.Errorf("%d unanswered Calls counted, want 26", n)
		}
		check(t, c, proxytest.SequenceCall(2))
	})
}

// TestBackChannelEnds: Calls that are outstanding end with either side.
func TestBackChannelEnds(t *testing.T) {
	t.Parallel()
	over(t, nil, func(t *testing.T, x *pinning, c *proxytest.Client, back *proxytest.Callback) {
		// The server's: the answer comes too late, and not to the next connection.
		m := proxytest.CallbackCall(9, 8)
		back.Call(m, 2)
		called(t, c, m)
		back.Drop(errors.New("dropped by the test"))
		x.Eventually("there is a new connection", func() bool {
			conns := x.back.Conns()
			return len(conns) == shared+1 && conns[shared] != back
		})
		next := x.back.Conns()[shared]
		check(t, c, proxytest.SequenceCall(2))
		m = proxytest.CallbackCall(10, 8)
		next.Call(m, 2)
		called(t, c, m)
		for _, xid := range []uint32{9, 10} {
			if err := c.Send(proxytest.CallbackReply(xid, 8)); err != nil {
				t.Fatal(err)
			}
		}
		answered(t, next, "after an answer to the connection before", plain(10), proxytest.CallbackReply(10, 8))
		// The client's.
		next.Call(m, 2)
		called(t, c, m)
		c.Close()
		if b, err := next.Next(patience); !errors.Is(err, proxytest.ErrEnded) {
			t.Errorf("after the client has gone the server got %x, %v; want the end of the connection", b, err)
		}
		x.Eventually("nothing is left", func() bool { return x.pinned() == 0 })
	})
}

// TestGSSCollisions: clients whose XIDs are the same, and signed, each get their
// own answers, over connections of the shared pool on which the XID is free, and do
// not wait for one another.
func TestGSSCollisions(t *testing.T) {
	t.Parallel()
	var gate proxytest.Gate
	defer gate.Open()
	x := newPinning(t, budget, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.Mode, u.Share = settings.ModeShared, 100
	})
	collisions := func() int { return metric(x.Harness, "upstream_xid_collisions_total") }
	// Clients whose small Calls all go to one connection: each had it for itself when it came.
	client := func(i int) *proxytest.Client {
		c := x.client()
		check(t, c, proxytest.EchoCall(uint32(i+1), 4, 4, 0))
		return c
	}
	// Grants grow with the first Reply of each connection.
	var warm sync.WaitGroup
	gate.Shut()
	for i := range uint32(shared) {
		c := x.client()
		warm.Go(func() { check(t, c, proxytest.EchoCall(i+1, 40<<10, 40<<10, 0)) })
	}
	x.Eventually("each connection has a Call", func() bool { return x.server.Calls.Load() == shared })
	gate.Open()
	warm.Wait()
	x.Eventually("all connections have their grants", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Credits.Granted == shared*32 })
	for _, clients := range []int{3, shared} { // on two loops
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			before, collided := x.server.XIDs()[0x5000], collisions()
			var cs []*proxytest.Client
			for i := range clients {
				cs = append(cs, client(i))
			}
			var wg sync.WaitGroup
			gate.Shut()
			for i, c := range cs {
				wg.Go(func() {
					check(t, c, proxytest.GSSCallOf(fmt.Sprint("context ", i), proxytest.EchoCall(0x5000, 100+i, 200+i, 0), uint32(i), 1))
				})
			}
			x.Eventually("all Calls with one XID are at the server, and none is answered", func() bool { return x.server.XIDs()[0x5000]-before == clients })
			gate.Open()
			wg.Wait()
			if n := x.server.XIDs()[0x5000] - before; n != clients {
				t.Errorf("the XID came %d times, want %d", n, clients)
			}
			t.Logf("%d collisions", collisions()-collided)
		})
	}
	// More than there are connections take turns.
	collided := collisions()
	var wg sync.WaitGroup
	gate.Shut()
	for i := range shared + 2 {
		c := x.client()
		wg.Go(func() {
			check(t, c, proxytest.GSSCallOf(fmt.Sprint("context ", i), proxytest.EchoCall(0x6000, 100+i, 200+i, 0), uint32(i), 1))
		})
	}
	x.Eventually("every connection has one, and another has been tried", func() bool { return x.server.XIDs()[0x6000] == shared && collisions() > collided })
	gate.Open()
	wg.Wait()
	if n := x.server.XIDs()[0x6000]; n != shared+2 {
		t.Errorf("the XID came %d times, want %d", n, shared+2)
	}
}

// TestGSSCollisionForGood: a client whose XID is taken on every connection, by Calls that
// the server does not answer, is closed when the time is over that a Call may wait. The
// others are not disturbed.
func TestGSSCollisionForGood(t *testing.T) {
	const wait = 300 * time.Millisecond
	var gate proxytest.Gate
	gate.Shut()
	defer gate.Open()
	x := newPinning(t, budget, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.Mode, u.Share, u.UnavailableAfter = settings.ModeShared, 100, wait
	})
	gss := func(i int) []byte {
		return proxytest.GSSCallOf(fmt.Sprint("context ", i), proxytest.EchoCall(0x7000, 100+i, 200+i, 0), uint32(i), 1)
	}
	var taken []<-chan []byte
	for i := range shared {
		ch, err := x.client().Go(gss(i))
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, ch)
	}
	x.Eventually("the XID is taken on every connection", func() bool { return x.server.XIDs()[0x7000] == shared })
	began := time.Now()
	if r, err := x.client().Call(gss(shared)); err == nil || errors.Is(err, proxytest.ErrTimeout) {
		t.Errorf("one more Call with this XID: %x, %v; want the end of its connection", r, err)
	}
	if d := time.Since(began); d < wait {
		t.Errorf("its connection ended after %v, want %v", d, wait)
	}
	gate.Open()
	for i, ch := range taken {
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(gss(i))) {
			t.Errorf("client %d: %x, want its own answer", i, r)
		}
	}
}
