package proxy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

const budget = 256 << 20

// forward is a proxy from TCP to an RDMA server, in memory.
func forward(t testing.TB, h *proxytest.Harness, credits int, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions)) (*proxy.Proxy, *proxytest.RDMAServer) {
	t.Helper()
	p := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	s := h.RDMAServer(p, []loop.Loop{l}, "storage", credits, b)
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
	uo := settings.UpstreamOptions{Name: "storage", RDMA: true, Provider: p, Endpoints: []string{"storage"}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}
	if change != nil {
		change(&lo, &uo)
	}
	return h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo}), s
}

// anywhere makes a listener accept at all addresses, for clients with several connections from one port.
func anywhere(l *settings.ListenerOptions, _ *settings.UpstreamOptions) { l.Address = "0.0.0.0:0" }

func check(t *testing.T, c *proxytest.Client, m []byte) {
	t.Helper()
	want := proxytest.Expected(m)
	got, err := c.Call(m)
	if err != nil {
		t.Errorf("call: %v", err)
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("reply of %d octets differs from the %d octets expected", len(got), len(want))
	}
}

// ended reports whether the Call whose Reply comes on ch has been answered, or its connection has ended.
func ended(ch <-chan []byte) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestForwardShapes: whatever the shape on the RDMA side, the client sees the
// same octets.
func TestForwardShapes(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	p, _ := forward(t, h, 32, proxytest.Behaviour{}, nil)
	c := h.Client(p.Addr("nfs"))
	xid := uint32(1)
	for _, n := range []int{0, 1, 2, 3, 4, 100, 1000, 3000, 3900, 4000, 4096, 5001, 16 << 10, 65537, 1 << 20} {
		xid += 4
		check(t, c, proxytest.EchoCall(xid, n, 0, 0))
		check(t, c, proxytest.EchoCall(xid+1, 0, n, 0))
		check(t, c, proxytest.ReadCall(xid+2, uint64(n), uint32(n)))
		check(t, c, proxytest.WriteCall(xid+3, uint64(n), n))
	}
	check(t, c, proxytest.GetattrCall(xid+4))
	check(t, c, proxytest.CallHeader(nil, xid+5, proxytest.EchoProgram, 1, 0))
}

// TestManyClients is the pool of 4 connections under 200 clients with 32 Calls
// outstanding each: credits are never overrun and all are answered.
func TestManyClients(t *testing.T) {
	const clients, deep, perClient, grant = 200, 32, 64, 16
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, grant, proxytest.Behaviour{}, nil)
	var wg sync.WaitGroup
	for i := range clients {
		c := h.Client(p.Addr("nfs"))
		wg.Add(1)
		go func() {
			defer wg.Done()
			var cwg sync.WaitGroup
			sem := make(chan struct{}, deep)
			for j := range perClient {
				sem <- struct{}{}
				m := proxytest.ReadCall(uint32(i*perClient+j+1), uint64(i*perClient+j), 60)
				cwg.Add(1)
				ch, err := c.Go(m)
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				go func() {
					defer cwg.Done()
					r, ok := <-ch
					if !ok || !bytes.Equal(r, proxytest.Expected(m)) {
						t.Errorf("client %d: wrong reply or none", i)
					}
					<-sem
				}()
			}
			cwg.Wait()
		}()
	}
	wg.Wait()
	// None was sent twice. Two clients may have one XID at the server by chance.
	if n := s.Calls.Load(); n != clients*perClient {
		t.Errorf("the server ran %d Calls, want %d", n, clients*perClient)
	}
	if n := s.MaxOutstanding.Load(); n > grant {
		t.Errorf("%d Calls outstanding on one connection under a grant of %d", n, grant)
	}
	if n := s.Connections(); n != 4 {
		t.Errorf("%d connections to the server, want the 4 of the start: none may have been lost", n)
	}
}

// A crowd is clients that count their answered Calls.
type crowd struct {
	*proxytest.Harness
	counts []atomic.Int64
	total  atomic.Int64
}

// keepCalling has client i call from start to done, one Call at a time under XIDs from xid on.
func (x *crowd) keepCalling(c *proxytest.Client, i, xid int, start, done <-chan struct{}) {
	<-start
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		default:
		}
		if _, err := c.Call(proxytest.ReadCall(uint32(xid|n+1), 0, 40)); err != nil {
			x.T.Error(err)
			return
		}
		x.counts[i].Add(1)
		x.total.Add(1)
	}
}

// unfair lists the clients that have less than half or more than twice the mean share of
// the next Calls.
func (x *crowd) unfair() (wrong []string) {
	x.T.Helper()
	x.Eventually("all have begun", func() bool {
		for i := range x.counts {
			if x.counts[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	// Shares are differences from a moment at which all of them wait.
	before := make([]int64, len(x.counts))
	for i := range x.counts {
		before[i] = x.counts[i].Load()
	}
	clients, n := int64(len(x.counts)), x.total.Load()
	x.Eventually("each client has had sixty Calls more, on average", func() bool { return x.total.Load() >= n+60*clients })
	mean := (x.total.Load() - n) / clients
	for i := range x.counts {
		if n := x.counts[i].Load() - before[i]; n < mean/2 || n > 2*mean {
			wrong = append(wrong, fmt.Sprintf("client %d had %d Calls answered, the mean is %d", i, n, mean))
		}
	}
	return wrong
}

// TestFairShare: clients that always have Calls waiting are served alike.
func TestFairShare(t *testing.T) {
	const clients = 100
	x := &crowd{Harness: proxytest.NewHarness(t, budget), counts: make([]atomic.Int64, clients)}
	p, _ := forward(t, x.Harness, 16, proxytest.Behaviour{Delay: time.Millisecond}, nil)
	start, done := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		c := x.Client(p.Addr("nfs"))
		deep := 32
		if i%2 == 1 {
			deep = 24 // less greedy, but never without a turn's worth of Calls waiting
		}
		for j := range deep {
			wg.Go(func() { x.keepCalling(c, i, i<<20|j<<12, start, done) })
		}
	}
	close(start)
	var wrong []string
	for range windows {
		if wrong = x.unfair(); wrong == nil {
			break
		}
	}
	close(done)
	wg.Wait()
	for _, w := range wrong {
		t.Error(w)
	}
}

// TestLostConnections: the server drops every connection again and again; each
// Call is answered, or the client's connection is closed, and nothing hangs.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, 8, proxytest.Behaviour{}, nil)
	var closed, answered atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c := h.Client(p.Addr("nfs"))
			for j := range 100 {
				xid := uint32(i<<16 | j + 1)
				m := proxytest.ReadCall(xid, uint64(j), 3000+uint32(j)*50) // may be replayed
				if j%10 == 0 {
					m = proxytest.MkdirCall(xid, "d") // may not: the client's connection closes
				}
				for try := 0; ; try++ {
					got, err := c.Call(m)
					if err == nil {
						if !bytes.Equal(got, proxytest.Expected(m)) {
							t.Errorf("client %d call %d: wrong octets", i, j)
						}
						if answered.Add(1)%25 == 0 { // so that all get on, however slowly
							s.DropConnections(errors.New("dropped by the test"))
						}
						break
					}
					closed.Add(1)
					if try == 50 {
						t.Errorf("client %d call %d: no answer after %d connections", i, j, try)
						break
					}
					c = h.Client(p.Addr("nfs"))
				}
			}
		}()
	}
	wg.Wait()
	t.Logf("%d client connections were closed for Calls that cannot be replayed", closed.Load())
	h.Eventually("all memory of Calls is back", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Used == 0 })
}

// TestRetransmission: a Call that is sent again, on the same connection or on a
// new one from the same port, has the same XID at the server.
func TestRetransmission(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var gate proxytest.Gate
	p, s := forward(t, h, 8, proxytest.Behaviour{Gate: &gate}, anywhere)
	port := h.KeptPort()
	absorbed := func(n int) {
		t.Helper()
		h.Eventually("the Call sent again is taken for the one under way", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == n })
	}
	gate.Shut()
	defer gate.Open()
	m := proxytest.MkdirCall(77, "once")
	a := port.Client(p.Addr("nfs"))
	first, err := a.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.WriteRecord(a.Conn, m); err != nil { // sent again on the same connection
		t.Fatal(err)
	}
	absorbed(1)
	gate.Open()
	if r := <-first; !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("wrong reply to the Call that was sent twice")
	}
	if n := s.Calls.Load(); n != 1 {
		t.Errorf("the server ran a Call sent twice on one connection %d times", n)
	}
	// In flight when its connection ends: the next connection takes it over.
	gate.Shut()
	m2 := proxytest.MkdirCall(78, "twice")
	if _, err := a.Go(m2); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the second Call is at the server", func() bool { return s.Calls.Load() == 2 })
	a.Conn.(*net.TCPConn).SetLinger(0)
	a.Close()
	h.Eventually("the bridge has seen the connection end", func() bool { return p.Status(status.Query{}).Listeners[0].Clients == 0 })
	b := port.Client(p.Addr("nfs"))
	second, err := b.Go(m2)
	if err != nil {
		t.Fatal(err)
	}
	absorbed(2)
	gate.Open()
	if r := <-second; !bytes.Equal(r, proxytest.Expected(m2)) {
		t.Error("wrong reply to the Call taken over by a new connection")
	}
	if n := s.Calls.Load(); n != 2 {
		t.Errorf("the server ran a Call taken over %d times", n-1)
	}
	// After it was answered: the same XID again, for the server's cache.
	if _, err := b.Call(m2); err != nil {
		t.Error(err)
	}
	xids := s.XIDs()
	if len(xids) != 2 {
		t.Errorf("two Calls came under %d XIDs", len(xids))
	}
}

// TestCallsNotSentInFull: a Call that a TCP upstream cannot have read whole when its
// connection ends goes to the next connection, even if it must not be repeated.
func TestCallsNotSentInFull(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var stuck atomic.Bool
	release := make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	defer open()
	s := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		if !stuck.Swap(true) {
			<-release // and nothing more is read from the first connection
		}
		return nil, false
	}})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024, Share: 100}})
	c := h.Client(p.Addr("nfs"))
	const writes = 32
	for i := range uint32(writes) { // more than the sockets hold
		if _, err := c.Go(proxytest.WriteCall(i+1, uint64(i), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	// A short Call would go before the WRITEs, and reach the kernel as soon as that has room.
	m := proxytest.MkdirCall(writes+1, strings.Repeat("d", 20<<10))
	ch, err := c.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("all Calls are on their way", func() bool {
		return p.Status(status.Query{}).Upstreams[0].Credits.Used == writes+1 && metric(h, "upstream_tcp_outbound_buffered_bytes") > 0
	})
	s.DropConnections()
	open()
	if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("a Call of which the server had nothing was not answered on the next connection")
	}
}

// TestRoutes: programs go where the routes say, others are refused as RFC 5531
// says.
func TestRoutes(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{})
	rp := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	rdma := h.RDMAServer(rp, []loop.Loop{l}, "storage", 8, proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{
		Name: "nfs", Address: "127.0.0.1:0",
		Routes: []settings.Route{
			{Program: oncrpc.ProgramNFS, Versions: []uint32{3}, Upstream: "rdma"},
			{Program: proxytest.EchoProgram, Upstream: "tcp"},
		},
	}}, []settings.UpstreamOptions{
		{Name: "rdma", RDMA: true, Provider: rp, Endpoints: []string{"storage"}},
		{Name: "tcp", Endpoints: []string{tcp.Addr()}},
	})
	c := h.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	check(t, c, proxytest.EchoCall(2, 100000, 100000, 0))
	if a, b := rdma.Calls.Load(), tcp.Calls.Load(); a != 1 || b != 1 {
		t.Errorf("%d Calls over RDMA and %d over TCP, want one each", a, b)
	}
	stat := func(m []byte) []uint32 {
		r, err := c.Call(m)
		if err != nil {
			t.Fatal(err)
		}
		var ws []uint32
		for i := 20; i+4 <= len(r); i += 4 {
			ws = append(ws, binary.BigEndian.Uint32(r[i:]))
		}
		return ws
	}
	if got := stat(proxytest.CallHeader(nil, 3, oncrpc.ProgramMount, 3, 1)); fmt.Sprint(got) != "[1]" {
		t.Errorf("program without a route: accept_stat %v, want PROG_UNAVAIL", got)
	}
	if got := stat(proxytest.CallHeader(nil, 4, oncrpc.ProgramNFS, 4, 1)); fmt.Sprint(got) != "[2 3 3]" {
		t.Errorf("version without a route: %v, want PROG_MISMATCH 3 to 3", got)
	}
	if got := stat(proxytest.CallHeader(nil, 5, oncrpc.ProgramCCP, 1, 1)); fmt.Sprint(got) != "[1]" {
		t.Errorf("connection configuration: %v, want PROG_UNAVAIL", got)
	}
}

// TestRefusedCalls: a Call of another RPC version and a Call with AUTH_TLS that is no probe are
// denied, over TCP and RDMA, and the connection goes on. RFC 5531 Section 9, RFC 9289 Section 4.1.
func TestRefusedCalls(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{})
	rp := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"},
		{Name: "rdma", Address: "front", RDMA: true, Provider: rp, Upstream: "tcp"},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
	over := map[string]func([]byte) ([]byte, error){
		"TCP":  h.Client(p.Addr("nfs")).Call,
		"RDMA": h.RDMAClient(rp, l, "front", 0).Call,
	}
	withTLS := func(m []byte) []byte {
		binary.BigEndian.PutUint32(m[24:], oncrpc.FlavorTLS)
		return m
	}
	for name, call := range over {
		want := func(what string, m, reply []byte) {
			t.Helper()
			got, err := call(m)
			if err != nil || !bytes.Equal(got, reply) {
				t.Errorf("%s, %s: Reply %x, %v; want %x", name, what, got, err, reply)
			}
		}
		want("AUTH_TLS in NULL", withTLS(proxytest.CallHeader(nil, 1, oncrpc.ProgramNFS, 3, 0)),
			oncrpc.AppendAccepted(nil, 1, oncrpc.Success))
		for program, procedure := range map[uint32]uint32{oncrpc.ProgramNFS: 1, oncrpc.ProgramMount: 1, oncrpc.ProgramCCP: 1, oncrpc.ProgramNLM: 2} {
			want(fmt.Sprintf("AUTH_TLS in program %d", program), withTLS(proxytest.CallHeader(nil, 2, program, 3, procedure)),
				oncrpc.AppendAuthError(nil, 2, oncrpc.AuthBadCredential))
		}
		m := proxytest.GetattrCall(3)
		reply, err := call(m)
		if err != nil || !bytes.Equal(reply, proxytest.Expected(m)) {
			t.Errorf("%s: GETATTR afterwards: %x, %v", name, reply, err)
		}
	}
	if n := tcp.Calls.Load(); n != 2 {
		t.Errorf("%d Calls reached the server, want the 2 of GETATTR", n)
	}

	c := h.Client(p.Addr("nfs"))
	for _, version := range []uint32{0, 1, 3, 0xffffffff} {
		for _, words := range []int{3, 10} { // of another version nothing behind the version is known
			m := proxytest.CallHeader(nil, 4, oncrpc.ProgramNFS, 3, 1)
			binary.BigEndian.PutUint32(m[8:], version)
			got, err := c.Call(m[:4*words])
			if want := oncrpc.AppendRPCMismatch(nil, 4); err != nil || !bytes.Equal(got, want) {
				t.Errorf("RPC version %d in %d words: Reply %x, %v; want %x", version, words, got, err, want)
			}
		}
	}
	check(t, c, proxytest.GetattrCall(5))
}

// TestRefusedHeaders: a Call whose header is not valid gets the Reply that RFC 5531 has for it, one line and one
// count, and the other Calls of its connection go on. Only what is no Call ends the connection.
func TestRefusedHeaders(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	logs := new(testkit.Log)
	h.Log = zerolog.New(logs)
	var gate proxytest.Gate
	s := h.TCPServer(proxytest.Behaviour{Gate: &gate})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
	c := h.Client(p.Addr("nfs"))
	gate.Shut()
	pending, err := c.Go(proxytest.GetattrCall(99))
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("a Call is under way", func() bool { return s.Calls.Load() == 1 })
	call := func(xid uint32, ws ...uint32) []byte {
		return testkit.Words(append([]uint32{xid, oncrpc.TypeCall, 2, oncrpc.ProgramNFS, 4, 1}, ws...)...)
	}
	for i, tt := range []struct {
		reason string
		m      []byte
		want   []byte
	}{
		{"rpc_version", testkit.Words(1, oncrpc.TypeCall, 3), oncrpc.AppendRPCMismatch(nil, 1)},
		{"credential", append(call(2, oncrpc.FlavorSys, 404), make([]byte, 404+8)...), oncrpc.AppendAuthError(nil, 2, oncrpc.AuthBadCredential)},
		{"verifier", append(call(3, oncrpc.FlavorNone, 0, oncrpc.FlavorNone, 404), make([]byte, 404)...), oncrpc.AppendAuthError(nil, 3, oncrpc.AuthBadVerifier)},
		{"short", call(4, oncrpc.FlavorSys, 0, oncrpc.FlavorNone, 8), oncrpc.AppendAccepted(nil, 4, oncrpc.GarbageArguments)},
		{"short", testkit.Words(5, oncrpc.TypeCall), oncrpc.AppendAccepted(nil, 5, oncrpc.GarbageArguments)},
		{"short", call(6, oncrpc.FlavorGSS, 40, 1, oncrpc.GSSData, 1), oncrpc.AppendAuthError(nil, 6, oncrpc.AuthBadCredential)},
	} {
		before := metric(h, fmt.Sprintf(`listener_refused_calls_total{listener="nfs",reason=%q}`, tt.reason))
		got, err := c.Call(tt.m)
		if err != nil || !bytes.Equal(got, tt.want) {
			t.Fatalf("%d, %s: Reply %x, %v; want %x", i, tt.reason, got, err, tt.want)
		}
		if n := metric(h, fmt.Sprintf(`listener_refused_calls_total{listener="nfs",reason=%q}`, tt.reason)); n != before+1 {
			t.Errorf("%d, %s: counted %d times", i, tt.reason, n-before)
		}
		if n := strings.Count(logs.String(), `"event":"call_header_refused"`); n != i+1 {
			t.Errorf("%d lines, want %d", n, i+1)
		}
	}
	gate.Open()
	if r := <-pending; !bytes.Equal(r, proxytest.Expected(proxytest.GetattrCall(99))) {
		t.Errorf("the Call under way was answered with %x", r)
	}
	check(t, c, proxytest.GetattrCall(7))
	if got, err := c.Call(testkit.Words(8, 2, 2, oncrpc.ProgramNFS, 3, 0, 0, 0, 0, 0)); err == nil {
		t.Errorf("what is no Call is answered with %x", got)
	}
	if n := metric(h, `listener_calls_total{listener="nfs",result="malformed"}`); n != 1 {
		t.Errorf("%d malformed, want 1", n)
	}
}

// TestReverse: RDMA clients reach a TCP server; here the client is a second
// proxy, so that every Call goes TCP, RDMA, TCP.
func TestReverse(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{})
	rp := fabrictest.NewLoopback()
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "rdma", Address: "middle", RDMA: true, Provider: rp, Upstream: "tcp"},
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "rdma"},
	}, []settings.UpstreamOptions{
		{Name: "tcp", Endpoints: []string{tcp.Addr()}, Connections: 2},
		{Name: "rdma", RDMA: true, Provider: rp, Endpoints: []string{"middle"}},
	})
	var wg sync.WaitGroup
	for i := range 8 {
		c := h.Client(p.Addr("nfs"))
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for j := range 40 {
				xid := uint32(i<<16 | j<<2 + 1)
				n := r.IntN(1 << r.IntN(19))
				check(t, c, proxytest.EchoCall(xid, n, r.IntN(1<<r.IntN(19)), 0))
				check(t, c, proxytest.ReadCall(xid+1, uint64(j), uint32(n)))
				check(t, c, proxytest.WriteCall(xid+2, uint64(j), n))
			}
		}()
	}
	wg.Wait()
}

// TestHostileClients: a client that breaks the protocol loses its connection, and does
// not disturb others.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, 64<<20)
	p, _ := forward(t, h, 16, proxytest.Behaviour{}, func(l *settings.ListenerOptions, _ *settings.UpstreamOptions) {
		l.StallTimeout = 500 * time.Millisecond
	})
	addr := p.Addr("nfs")
	good := h.Client(addr)
	mark := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	closes := func(name string, send func(net.Conn)) {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		send(c)
		var b [1]byte
		_, err = c.Read(b[:])
		var ne net.Error
		if err == nil || errors.As(err, &ne) && ne.Timeout() {
			t.Errorf("%s: the connection is not closed: %v", name, err)
		}
		check(t, good, proxytest.GetattrCall(uint32(rand.Uint32N(1<<30))))
	}
	closes("a record mark of 2 GiB", func(c net.Conn) { _, _ = c.Write(mark(1<<31 | 0x7fffffff)) })
	closes("more than a million empty fragments", func(c net.Conn) {
		zeros := make([]byte, 4096)
		for range 1100 {
			if _, err := c.Write(zeros); err != nil {
				return
			}
		}
	})
	closes("endless fragments", func(c net.Conn) {
		frag := append(mark(1<<20), make([]byte, 1<<20)...)
		for range 16 {
			if _, err := c.Write(frag); err != nil {
				return
			}
		}
	})
	closes("a record that stops in the middle", func(c net.Conn) { _, _ = c.Write(append(mark(1<<31|4096), 1, 2, 3)) })
	closes("garbage", func(c net.Conn) {
		b := make([]byte, 4096)
		testkit.FillPattern(b, 99)
		copy(b, mark(1<<31|4092))
		_, _ = c.Write(b)
	})
	closes("a thousand Replies where Calls belong", func(c net.Conn) {
		for range 1000 {
			if testkit.WriteRecord(c, proxytest.GetattrReply(1, nil)) != nil {
				return
			}
		}
	})
	for range 999 {
		if err := testkit.WriteRecord(good.Conn, proxytest.GetattrReply(1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	check(t, good, proxytest.GetattrCall(1))
}

// TestClientThatDoesNotRead: its Calls stop being read; the others go on, and
// memory stays within the budget.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const budget = 64 << 20
	h := proxytest.NewHarness(t, budget)
	p, _ := forward(t, h, 16, proxytest.Behaviour{}, func(l *settings.ListenerOptions, _ *settings.UpstreamOptions) {
		l.MaxOutbound = 4 << 20
	})
	addr := p.Addr("nfs")
	greedy, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer greedy.Close()
	var sent atomic.Int64
	go func() {
		for i := range uint32(100000) {
			if testkit.WriteRecord(greedy, proxytest.ReadCall(i+1, 0, 1<<20)) != nil {
				return
			}
			sent.Add(1)
		}
	}()
	c := h.Client(addr)
	for i := range uint32(300) {
		check(t, c, proxytest.ReadCall(i+1, uint64(i), 100000))
		if used := h.Arena.Stats().Used; used > budget {
			t.Fatalf("%d octets used of a budget of %d", used, budget)
		}
	}
	if used := h.Arena.Stats().Used; used > 40<<20 {
		t.Errorf("a client that reads nothing holds %d octets", used)
	}
}

// TestClientsThatDoNotRead: whatever they ask for, over RDMA or TCP, alone or
// together, the others go on.
func TestClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	const budget = 64 << 20
	unknown := func(xid uint32) []byte { return proxytest.EchoCall(xid, 20, 1000000, 0) }
	read := func(xid uint32) []byte { return proxytest.ReadCall(xid, 0, 1<<20) }
	for _, tt := range []struct {
		name   string
		greedy int
		tcp    bool
		call   func(xid uint32) []byte
	}{
		{"one, replies without a bound", 1, false, unknown},
		{"one, reads", 1, false, read},
		{"many, replies without a bound", 12, false, unknown},
		{"many, reads", 12, false, read},
		{"many, reads, upstream on TCP", 12, true, read},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			var p *proxy.Proxy
			if tt.tcp {
				s := h.TCPServer(proxytest.Behaviour{})
				p = h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}},
					[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
			} else {
				p, _ = forward(t, h, 64, proxytest.Behaviour{}, nil)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			for range tt.greedy {
				greedy, err := net.Dial("tcp", p.Addr("nfs"))
				if err != nil {
					t.Fatal(err)
				}
				defer greedy.Close()
				_ = greedy.(*net.TCPConn).SetReadBuffer(4096)
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range uint32(3000) { // 3 GB of Replies
						if testkit.WriteRecord(greedy, tt.call(i+1)) != nil {
							return
						}
					}
				}()
			}
			c := h.Client(p.Addr("nfs"))
			for i := range uint32(50) {
				check(t, c, proxytest.ReadCall(i+1, uint64(i), 100000))
				if t.Failed() {
					t.Fatalf("call %d: %+v", i, p.Status(status.Query{}).Memory.Accounts)
				}
			}
		})
	}
}

// TestDrain: Calls in flight are answered, then clients are closed.
func TestDrain(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, 16, proxytest.Behaviour{}, nil)
	idle, busy := h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs"))
	check(t, idle, proxytest.GetattrCall(1))
	m := proxytest.EchoCall(2, 10, 10, 400)
	ch, err := busy.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the slow Call is at the server", func() bool { return s.Calls.Load() == 2 })
	if err := p.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("the Call in flight was not answered before its client was closed")
	}
	if p.Ready() == nil {
		t.Error("ready while draining")
	}
	if _, err := net.Dial("tcp", p.Addr("nfs")); err == nil {
		t.Error("a client was let in after the drain")
	}
}

// TestDrainOfBusyClients: clients that always have a Call outstanding do not keep
// a drain from ending.
func TestDrainOfBusyClients(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p, _ := forward(t, h, 16, proxytest.Behaviour{Delay: 20 * time.Millisecond}, nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	var answered atomic.Int64
	c := h.Client(p.Addr("nfs"))
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := uint32(1); ; n++ {
				if _, err := c.Call(proxytest.GetattrCall(uint32(i+1)<<24 | n)); err != nil {
					c.Close()
					return
				}
				answered.Add(1)
			}
		}()
	}
	h.Eventually("the client is busy", func() bool { return answered.Load() > 20 })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := p.Drain(ctx); err != nil {
		t.Error(err)
	}
}

// TestUpstreamDown: a client is closed when no upstream comes within the time it
// may wait, and not before; a Call that waits is sent once it comes.
func TestUpstreamDown(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, 8, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.UnavailableAfter = 400 * time.Millisecond
	})
	h.Eventually("all connections are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 4 })
	s.Close()
	h.Eventually("the connections are gone", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 0 })
	c := h.Client(p.Addr("nfs"))
	began := time.Now()
	if _, err := c.Call(proxytest.GetattrCall(5)); err == nil {
		t.Error("a Call was answered by nobody")
	}
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("the client was closed after %v already", d)
	}
	if p.Ready() == nil {
		t.Error("ready without an upstream")
	}
}

// TestMemoryForRepliesRunsOut: more Calls with Reply chunks of the largest size
// than there is memory for; they take turns and all are answered.
func TestMemoryForRepliesRunsOut(t *testing.T) {
	h := proxytest.NewHarness(t, 32<<20)
	p, _ := forward(t, h, 64, proxytest.Behaviour{}, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		c := h.Client(p.Addr("nfs"))
		for j := range 16 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for k := range 6 {
					check(t, c, proxytest.EchoCall(uint32(i<<16|j<<8|k+1), 20, 60, 0))
				}
			}()
		}
	}
	wg.Wait()
	if used := h.Arena.Stats().Used; used > 16<<20 {
		t.Errorf("%d octets still used", used)
	}
}

// TestNoMemoryOfAnAsyncProvider: where handles die late, a Call that found no
// memory is taken and ends as not sent. Its connection is well and stays.
func TestNoMemoryOfAnAsyncProvider(t *testing.T) {
	h := proxytest.NewHarness(t, 32<<20)
	lp := fabrictest.NewLoopback()
	lp.AsyncInvalidate(true)
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	s := h.RDMAServer(lp, []loop.Loop{l}, "storage", 64, proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", RDMA: true, Provider: lp, Endpoints: []string{"storage"}}})
	h.Eventually("all connections are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 4 })
	var wg sync.WaitGroup
	for i := range 8 {
		c := h.Client(p.Addr("nfs"))
		for j := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for k := range 5 {
					check(t, c, proxytest.EchoCall(uint32(i<<16|j<<8|k+1), 6000, 60, 0))
				}
			}()
		}
	}
	wg.Wait()
	if st := p.Status(status.Query{}).Upstreams[0]; st.Usable != 4 || s.Connections() != 4 {
		t.Errorf("%d connections usable and %d at the server, want the 4 of the start", st.Usable, s.Connections())
	}
}

// TestCallsAddUp: every Call that was read ends in one result, and every Call
// sent in one outcome or a replay.
func TestCallsAddUp(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, 8, proxytest.Behaviour{Delay: 5 * time.Millisecond}, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 40 {
				c := h.Client(p.Addr("nfs"))
				xid := uint32(i<<16 | j<<4)
				for k, m := range [][]byte{
					proxytest.GetattrCall(xid), proxytest.MkdirCall(xid+1, "d"), proxytest.MkdirCall(xid+1, "d"),
					proxytest.CallHeader(nil, xid+2, oncrpc.ProgramCCP, 1, 1),
				} {
					ch, err := c.Go(m)
					if err == nil && (j+k)%3 == 0 {
						<-ch
					}
				}
				if j%4 == 0 {
					s.DropConnections(errors.New("dropped by the test"))
				}
				if j%5 == 0 {
					_ = testkit.WriteRecord(c.Conn, proxytest.GetattrReply(1, nil)) // no Call, and not counted
					_ = testkit.WriteRecord(c.Conn, make([]byte, 40))               // no Call of RPC version 2
				}
				c.Close()
			}
		}()
	}
	wg.Wait()
	var text string
	sum := func(name string) (n float64) {
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) == 2 && (f[0] == name || strings.HasPrefix(f[0], name+"{")) {
				v, _ := strconv.ParseFloat(f[1], 64)
				n += v
			}
		}
		return n
	}
	scrape := func() {
		w := httptest.NewRecorder()
		h.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		text = w.Body.String()
	}
	h.Eventually("all Calls have ended", func() bool {
		scrape()
		return p.Status(status.Query{}).Listeners[0].Clients == 0 && sum("rdmabridge_listener_received_calls_total") == sum("rdmabridge_listener_calls_total")
	})
	if n := sum("rdmabridge_listener_received_calls_total"); n == 0 {
		t.Error("no Call was counted")
	}
	// The server may still have Calls whose clients have gone.
	h.Eventually("as many Calls ended or were replayed as were sent", func() bool {
		scrape()
		return sum("rdmabridge_upstream_sent_calls_total") == sum("rdmabridge_upstream_calls_total")+sum("rdmabridge_upstream_replays_total")
	})
}
