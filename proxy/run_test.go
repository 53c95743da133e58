package proxy_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// mixedRun makes Calls that are like the Call before them in all that decides about Calls, for the most part. Some
// differ in the user, the procedure, the version, or have arguments that are too long or too short.
func mixedRun(r *rand.Rand, n uint32) (calls [][]byte) {
	commits := false
	for xid := uint32(1); xid <= n; xid++ {
		file := append(testkit.Words(xid), make([]byte, 4*r.IntN(16))...) // two Calls differ in more than the XID
		m := proxytest.GetattrCallOf(xid, file)
		if r.IntN(16) == 0 {
			commits = !commits
		}
		if commits {
			m = commitCall(m)
		}
		switch r.IntN(24) {
		case 0:
			m = proxytest.MkdirCall(xid, fmt.Sprint(xid))
		case 1:
			m = append(m, 0, 0, 0, 0)
		case 2:
			m = m[:len(m)-4]
		case 3:
			m[19] = 2 // of NFS
		case 4:
			m = proxytest.ReadCall(xid, uint64(xid), 100)
		}
		user := uint32(0)
		if r.IntN(8) == 0 {
			user = r.Uint32N(3)
		}
		calls = append(calls, withUser(m, user, 0))
	}
	return calls
}

// commitCall makes a COMMIT of all of the file of a GETATTR.
func commitCall(m []byte) []byte {
	m[23] = 21
	return append(m, make([]byte, 12)...)
}

// TestRepeatsInRun: of Calls that come in one read, one that repeats another is dropped, and those behind it go on.
func TestRepeatsInRun(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var gate proxytest.Gate
	s := h.TCPServer(proxytest.Behaviour{Gate: &gate})
	p := h.Proxy([]settings.ListenerOptions{{Name: "tcp", Address: "127.0.0.1:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
	c := h.Client(p.Addr("tcp"))
	before := s.Calls.Load()
	gate.Shut()
	var calls [][]byte
	for xid := range uint32(8) { // of which the client waits for the last four below
		calls = append(calls, commitCall(proxytest.GetattrCallOf(xid, testkit.Words(xid))))
	}
	replies, err := c.GoAll(calls...)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("all are at the server", func() bool { return s.Calls.Load() == before+8 })
	again := slices.Insert(slices.Clone(calls[4:]), 2, commitCall(proxytest.GetattrCallOf(9, testkit.Words(9))))
	more, err := c.GoAll(again...)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the repeats are dropped", func() bool { return metric(h, `listener_calls_total{listener="tcp",result="absorbed"}`) == 4 })
	gate.Open()
	calls, replies = append(calls[:4], again...), append(replies[:4], more...)
	for i, ch := range replies {
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(calls[i])) {
			t.Errorf("Call %d is answered %x", i, r)
		}
	}
	h.Eventually("all are over", func() bool { return metric(h, `listener_calls_total{listener="tcp"`) == 13 })
	if n := s.Calls.Load() - before; n != 9 {
		t.Errorf("the server had %d Calls, want 9", n)
	}
}

// TestRunOfCalls: Calls that come together are judged, changed, counted and answered as Calls are that come one by one.
func TestRunOfCalls(t *testing.T) {
	t.Parallel()
	for _, way := range [][2]string{{"tcp", "tcp"}, {"tcp", "rdma"}, {"rdma", "tcp"}, {"rdma", "rdma"}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) { runOfCalls(t, way[0], way[1]) })
	}
}

func runOfCalls(t *testing.T, listener, upstream string) {
	names := []string{
		`listener_rule_calls_total{listener="` + listener + `",rule="counted"`, `listener_rule_calls_total{listener="` + listener + `",rule="denied"`,
		`operation_calls_total{`, `operation_received_bytes_total{`, `listener_received_calls_total{listener="` + listener + `"`,
	}
	if upstream == "rdma" {
		names = append(names, `upstream_rdma_calls_total{call="inline",reply="reply_chunk"`)
	}
	x := newPoliced(t, upstream, func(l *settings.ListenerOptions) {
		l.Rules = []rules.Rule{
			{Name: "counted", UIDs: []rules.Range{{Low: 1, High: 1}}, Action: rules.Allow},
			{Name: "denied", UIDs: []rules.Range{{Low: 2, High: 2}}, Action: rules.Deny},
		}
	})
	calls := mixedRun(rand.New(rand.NewPCG(1, 2)), 400)
	port := x.KeptPort() // XIDs follow from it
	dial := func() caller {
		if listener == "tcp" {
			return port.Client(x.p.Addr("tcp"))
		}
		return x.dial("rdma")
	}
	over := func(n int) (counts []int, xids map[string]uint32) {
		x.Eventually("the Calls are over", func() bool { return metric(x.Harness, `listener_calls_total{listener="`+listener+`"`) == n })
		for _, name := range names {
			counts = append(counts, metric(x.Harness, name))
		}
		x.server.mu.Lock()
		defer x.server.mu.Unlock()
		xids = maps.Clone(x.server.xids)
		maps.DeleteFunc(xids, func(m string, _ uint32) bool { return m[16:20] == "\x00\x00\x00\x00" }) // NULL Calls
		clear(x.server.xids)
		return counts, xids
	}
	var want [][]byte
	client := dial()
	for _, m := range calls {
		reply, err := client.Call(m)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, reply)
	}
	single, singleXIDs := over(len(calls))
	if c, ok := client.(*proxytest.Client); ok {
		c.Reset() // the next client has its port
	}
	client = dial()
	for i, ch := range goAll(t, client, calls...) {
		if got := <-ch; !bytes.Equal(got, want[i]) {
			t.Fatalf("Call %d, %x: got %x, want %x", i, calls[i], got, want[i])
		}
	}
	run, runXIDs := over(2 * len(calls))
	for i, name := range names {
		if single[i] == 0 || run[i] != 2*single[i] {
			t.Errorf("%s is %d after single Calls and %d after a run", name, single[i], run[i])
		}
	}
	if len(runXIDs) < 300 || !maps.Equal(singleXIDs, runXIDs) {
		t.Error("the server saw other Calls, or other XIDs, when they came in a run")
	}
	var same [][]byte
	for xid := range uint32(8) {
		same = append(same, withUser(proxytest.GetattrCallOf(1000+xid, testkit.Words(xid)), 0, 0))
	}
	x.Eventually("a Call follows the one before", func() bool {
		for _, ch := range goAll(t, client, same...) {
			<-ch
		}
		return x.p.Followed()
	})
}

// goAll sends Calls together.
func goAll(t *testing.T, c caller, calls ...[]byte) []<-chan []byte {
	t.Helper()
	replies, err := c.(interface {
		GoAll(ms ...[]byte) ([]<-chan []byte, error)
	}).GoAll(calls...)
	if err != nil {
		t.Fatal(err)
	}
	return replies
}

// TestRunOfOneClient: a run of 64 Calls of one client delays the single Calls of others, which come behind it while the
// server is busy, by no more than the octets that the client may send in one turn: 16 short Calls.
func TestRunOfOneClient(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) { runOfOneClient(t, transport == "rdma") })
	}
}

func runOfOneClient(t *testing.T, rdma bool) {
	const credits, run, singles, turn = 4, 64, 4, 16
	// The clients of another loop would wait in a queue of their own.
	h := proxytest.NewHarness(t, budget, func(o *tcpframe.EngineOptions) { o.Loops = 1 })
	var mu sync.Mutex
	var order []byte // of the Calls that the server got: the first octet of the file
	gate := &proxytest.Gate{PassNull: true}
	s := h.TCPServer(proxytest.Behaviour{Gate: gate, InterceptTCP: func(c *oncrpc.Call, _ *proxytest.TCPConn) ([]byte, bool) {
		if c.Procedure != 0 {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, c.Message[c.Args+4])
		}
		return nil, false
	}})
	provider, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "nfs", Address: "127.0.0.1:0", RDMA: rdma, Provider: provider, Upstream: "tcp", Credits: run},
	}, []settings.UpstreamOptions{
		{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 1, Credits: credits, Share: 100, SlowStart: 1024},
	})
	dial := func() caller {
		if rdma {
			return h.RDMAClient(provider, l, p.Addr("nfs"), 0)
		}
		return h.Client(p.Addr("nfs"))
	}
	received := func() int { return metric(h, `listener_received_calls_total{listener="nfs"`) }
	send := func(c caller, file byte, first, n uint32) (replies []<-chan []byte) {
		var calls [][]byte
		for i := range n {
			calls = append(calls, proxytest.GetattrCallOf(first+i, []byte{file, 0, 0, 0}))
		}
		return goAll(t, c, calls...)
	}
	busy := dial()
	if rdma { // it gets credits by using them
		h.Eventually("the client has credits for its run", func() bool {
			for _, ch := range send(busy, 'w', 1, 2*run) {
				<-ch
			}
			return p.Status(status.Query{}).Clients.List[0].Credits.Granted == run
		})
	}
	mu.Lock()
	order = nil
	mu.Unlock()
	before := received()
	came := func(n int) {
		h.Eventually(fmt.Sprintf("%d Calls have come", n), func() bool { return received()-before == n })
	}
	gate.Shut()
	all := send(busy, 'r', 1, run)
	came(run)
	for i := range uint32(singles) {
		all = append(all, send(dial(), 's', 1000+i, 1)...)
		came(run + 1 + int(i))
	}
	gate.Open()
	for _, ch := range all {
		if _, ok := <-ch; !ok {
			t.Fatal("a client's connection ended")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	last := bytes.LastIndexByte(order, 's')
	t.Logf("the server got %s", order)
	if most := credits + turn + singles; len(order) != run+singles || last >= most {
		t.Errorf("the last single Call was number %d of %d, want it among the first %d: %s", last+1, len(order), most, order)
	}
}

// TestReplyRunOfRDMAClient: short Replies to an RDMA client go from where they were read to what is written to it. The
// upstream's connection copies none of them.
func TestReplyRunOfRDMAClient(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget, func(o *tcpframe.EngineOptions) { o.Loops = 1 })
	provider := proxytest.IWARP(iwarp.Options{})
	rs := h.RDMAServer(provider, []loop.Loop{h.Engine.Loops()[0]}, "127.0.0.1:0", 64, proxytest.Behaviour{})
	ts := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "to-rdma", Address: "127.0.0.1:0", RDMA: true, Provider: provider, Upstream: "rdma"},
		{Name: "to-tcp", Address: "127.0.0.1:0", RDMA: true, Provider: provider, Upstream: "tcp"},
	}, []settings.UpstreamOptions{
		{Name: "rdma", RDMA: true, Provider: provider, Endpoints: []string{rs.Addr()}},
		{Name: "tcp", Endpoints: []string{ts.Addr()}},
	})
	const rounds = 10
	for upstream, stage := range map[string]string{"rdma": "requester", "tcp": "tcp"} {
		c := h.RDMAClient(provider, h.Engine.Loops()[0], p.Addr("to-"+upstream), 0)
		var calls [][]byte
		sent, got := 0, 0
		for xid := range uint32(16) {
			m := proxytest.GetattrCallOf(xid, testkit.Words(xid))
			calls = append(calls, m)
			sent, got = sent+rounds*(4+len(m)), got+rounds*len(proxytest.Expected(m))
		}
		for range rounds {
			for i, ch := range goAll(t, c, calls...) {
				if r := <-ch; !bytes.Equal(r, proxytest.Expected(calls[i])) {
					t.Fatalf("Call %d is answered %x", i, r)
				}
			}
		}
		most := got / 2 // the upstream's first Replies, and one that comes before the completion of its Call, are copied
		if upstream == "tcp" {
			most += sent // Calls are copied, with their record marks
		}
		if n := metric(h, `upstream_copied_bytes_total{stage="`+stage+`",upstream="`+upstream+`"}`); n > most {
			t.Errorf("%d octets were copied for upstream %s, of Replies of %d; want %d at most", n, upstream, got, most)
		}
	}
	h.Eventually("all Calls count as answered", func() bool {
		return metric(h, `listener_calls_total{listener="to-rdma",result="replied"}`) == rounds*16 &&
			metric(h, `listener_calls_total{listener="to-tcp",result="replied"}`) == rounds*16
	})
}
