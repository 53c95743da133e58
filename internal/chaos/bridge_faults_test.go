package chaos

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// A bridgeRow is a row of docs/faults.md about hosts, endpoints, memory and the bridge
// itself, which takes more than one Call and one fault to show.
type bridgeRow struct {
	name    string
	do      func(b *bridgeFault)
	says    []string // words about the client in the row
	log     []string
	metrics []string // counters that have moved, and gauges that b.gauge has seen up
}

// A bridgeFault is the world of a bridgeRow.
type bridgeFault struct {
	*world
	before map[string]float64
	up     []string // gauges
	n      int      // clients
}

// bridge starts the bridge, with a listener "in" before the upstream given.
func (b *bridgeFault) bridge(l settings.ListenerOptions, u settings.UpstreamOptions) {
	b.t.Helper()
	l.Name, l.Address, l.Upstream, u.Name = "in", "127.0.0.1:0", "up", "up"
	b.start([]settings.ListenerOptions{l}, []settings.UpstreamOptions{u})
	b.before = b.series()
}

// client is another client, at an address of its own.
func (b *bridgeFault) client() *rogue {
	b.n++
	return &rogue{
		name: fmt.Sprintf("client %d", b.n), book: b.book, counts: &b.counts, addr: b.proxy.Addr("in"),
		local: net.IPv4(127, 0, 3, byte(b.n)), dice: b.seed.dice("row", b.n), xid: 100,
	}
}

// sees checks the outcome of a Call for client g.
func (b *bridgeFault) sees(g *rogue, k kind, want outcome) {
	b.t.Helper()
	if got := b.probe(g, k, nil); got != want {
		b.t.Errorf("%s, %v: saw %v, want %v", g.name, k, got, want)
	}
}

// later is sees beside what the caller does. The function it returns waits, and returns
// how long it took from now on.
func (b *bridgeFault) later(g *rogue, k kind, want outcome) (wait func() time.Duration) {
	began := time.Now()
	took := make(chan time.Duration, 1)
	go func() {
		b.sees(g, k, want)
		took <- time.Since(began)
	}()
	return func() time.Duration { return <-took }
}

// gauge waits until a gauge is above 0.
func (b *bridgeFault) gauge(name string) {
	b.t.Helper()
	if !testkit.Settles(testkit.Patience, func() bool { return b.sum("rdmabridge_"+name) > 0 }) {
		b.t.Errorf("%s stays 0", name)
	}
	b.up = append(b.up, name)
}

// falls waits until a gauge is 0 again.
func (b *bridgeFault) falls(name string) {
	b.t.Helper()
	if !testkit.Settles(testkit.Patience, func() bool { return b.sum("rdmabridge_"+name) == 0 }) {
		b.t.Errorf("%s stays %v", name, b.sum("rdmabridge_"+name))
	}
}

func (b *bridgeFault) back() {
	b.t.Helper()
	if !testkit.Settles(testkit.Patience, func() bool { return b.proxy.Ready() == nil }) {
		b.t.Error("the upstream does not come back")
	}
}

// vanishes is a server whose host is not there any more, over both transports.
func vanishes(over string) func(*bridgeFault) {
	return func(b *bridgeFault) {
		const silent = 2 * time.Second
		u := settings.UpstreamOptions{Connections: 1, SilentTimeout: silent, RDMA: over == "rdma"}
		var target string
		if u.RDMA {
			b.overRDMA("up", newServer(b.book, true))
			target = b.responders[0].l.Addr().String()
			u.Provider = proxytest.IWARP(iwarp.Options{SilentTimeout: silent, Log: b.h.Log})
		} else {
			b.overTCP("up", newServer(b.book, true))
			target = b.servers[0].Addr()
		}
		r := proxytest.NewRelay(b.t, target)
		u.Endpoints = []string{r.Addr()}
		b.bridge(settings.ListenerOptions{}, u)
		g := b.client()
		b.sees(g, getattr, answered)
		for _, c := range []struct {
			k    kind
			want outcome
		}{{read, answered}, {mkdir, closed}} {
			silences := func() float64 { return b.sum("rdmabridge_upstream_disconnects_total", `reason="silent"`) }
			before := silences()
			r.Vanish(false)
			took := b.later(g, c.k, c.want)
			if !testkit.Settles(silent+patience, func() bool { return silences() > before }) {
				b.t.Error("the connection does not end")
			}
			r.Forget() // as the host does when it is up again
			if d := took(); d < silent/2 {
				b.t.Errorf("%v: %v after %v already, with timeouts.silent %v", c.k, c.want, d, silent)
			}
			b.back()
		}
	}
}

// stopped is a server that is stopped, and goes on later, over both transports.
func stopped(over string, called bool) func(*bridgeFault) {
	return func(b *bridgeFault) {
		b.callTimeout = 2 * time.Second
		s := newServer(b.book, true)
		u := settings.UpstreamOptions{Connections: 1, ProbeInterval: 200 * time.Millisecond}
		if over == "rdma" {
			u.RDMA, u.Provider, u.Endpoints = true, b.iwarp, []string{b.overRDMA("up", s)}
		} else {
			u.Endpoints = []string{b.overTCP("up", s)}
		}
		b.bridge(settings.ListenerOptions{}, u)
		g, h := b.client(), b.client()
		b.sees(g, getattr, answered)
		s.stop()
		var one, other func() time.Duration
		if called {
			one, other = b.later(g, read, answered), b.later(h, mkdir, closed)
		}
		b.gauge("upstream_stalled_connections")
		if !testkit.Settles(5*time.Second, func() bool { return b.sum("rdmabridge_upstream_disconnects_total", `reason="deadline"`) > 0 }) {
			b.t.Error("the connection does not end by the deadline")
		}
		if called {
			if d := other(); d < b.callTimeout {
				b.t.Errorf("closed after %v, with timeouts.call %v", d, b.callTimeout)
			}
		}
		s.goOn()
		if called {
			one()
		}
		b.falls("upstream_stalled_connections")
		b.back()
		b.sees(g, getattr, answered)
	}
}

// endpointLost is one of two endpoints that is away for a while.
func endpointLost(failover bool) func(*bridgeFault) {
	return func(b *bridgeFault) {
		b.unavailable = time.Second
		u := settings.UpstreamOptions{Connections: 2, Failover: failover, Priority: failover}
		for range 2 {
			u.Endpoints = append(u.Endpoints, b.overTCP("up", newServer(b.book, true)))
		}
		b.bridge(settings.ListenerOptions{}, u)
		testkit.Settles(5*time.Second, func() bool { return b.sum("rdmabridge_upstream_connections") == 2 })
		var clients []*rogue
		home := make(map[*rogue]bool) // of the endpoint that is lost
		for range 8 {
			g := b.client()
			before := b.servers[0].server.taken.Load()
			b.sees(g, getattr, answered)
			home[g] = b.servers[0].server.taken.Load() > before
			clients = append(clients, g)
		}
		b.wires[0].down()
		if failover {
			b.gauge("upstream_ejected_endpoints")
		} else if !testkit.Settles(5*time.Second, func() bool { return b.sum("rdmabridge_upstream_dial_errors_total") > 0 }) {
			b.t.Error("nothing tries to connect")
		}
		lost := 0
		var wait []func() time.Duration
		for _, g := range clients {
			if failover || !home[g] {
				b.sees(g, mkdir, answered)
				continue
			}
			lost++
			wait = append(wait, b.later(g, getattr, closed))
		}
		for _, f := range wait {
			if d := f(); d < b.unavailable/2 {
				b.t.Errorf("closed after %v already, with timeouts.unavailable %v", d, b.unavailable)
			}
		}
		if !failover && (lost == 0 || lost == len(clients)) {
			b.t.Errorf("%d of %d clients belong to one endpoint of two", lost, len(clients))
		}
		b.wires[0].up()
		b.falls("upstream_ejected_endpoints")
		b.back()
		if !testkit.Settles(testkit.Patience, func() bool { return b.sum("rdmabridge_upstream_connections") == 2 }) {
			b.t.Error("a connection does not come back")
		}
		for _, g := range clients {
			b.sees(g, mkdir, answered)
		}
	}
}

// manyDials is the loss of many clients' own connections at once.
func manyDials(b *bridgeFault) {
	r := proxytest.NewRelay(b.t, b.overTCP("up", newServer(b.book, true)))
	b.bridge(settings.ListenerOptions{}, settings.UpstreamOptions{Connections: 1, Mode: settings.ModePinned, Endpoints: []string{r.Addr()}})
	var lines []line
	for range 150 {
		g := b.client()
		l, err := dialTCP(context.Background(), g.addr, net.IPv4(127, 0, 3, 1))
		if err != nil {
			b.t.Fatal(err)
		}
		defer l.close()
		lines = append(lines, l)
	}
	g := b.client()
	all := func() {
		var wg sync.WaitGroup
		for _, l := range lines {
			o := g.call(getattr, 0)
			b.book.transmit(o.id)
			if err := l.send(o.m, bound); err != nil {
				b.t.Error(err)
			}
			wg.Go(func() {
				select {
				case m := <-l.replies():
					g.check(o, m)
				case <-l.ended():
					b.t.Error("a client was closed")
				case <-time.After(bound):
					b.t.Error("a client is not answered")
				}
			})
		}
		wg.Wait()
	}
	all()
	r.Ignore()
	b.wires[0].cutAll(true)
	b.gauge("dials_waiting")
	b.gauge("dials_in_progress")
	r.Return()
	all()
	b.falls("dials_waiting")
}

// noMemoryForCalls fills the memory for Calls while the server stands.
func noMemoryForCalls(b *bridgeFault) {
	b.callTimeout = 20 * time.Second
	s := newServer(b.book, true)
	b.bridge(settings.ListenerOptions{StallTimeout: 20 * time.Second}, settings.UpstreamOptions{Connections: 1, SlowStart: 1 << 10, Endpoints: []string{b.overTCP("up", s)}})
	s.stop()
	var wait []func()
	for range 6 {
		g := b.client()
		c, err := g.dial()
		if err != nil {
			b.t.Fatal(err)
		}
		defer c.Close()
		for range 6 {
			o := g.call(write, 1<<20)
			b.book.transmit(o.id)
			go func() { _, _ = c.Write(testkit.Record(o.m)) }()
			wait = append(wait, func() {
				if !g.answers(c) {
					b.t.Error("a client was closed")
				}
			})
		}
	}
	b.gauge("call_memory_waiting_connections")
	other := b.later(b.client(), mkdir, answered)
	s.goOn()
	for _, f := range wait {
		f()
	}
	other()
	b.falls("call_memory_waiting_connections")
}

// answers reads one Reply, of whatever Call. It reports false at the end of c.
func (g *rogue) answers(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(bound))
	_, err := testkit.ReadRecord(c)
	return err == nil
}

// noMemoryForReplies is many clients that together take all of it and read nothing.
func noMemoryForReplies(b *bridgeFault) {
	b.callTimeout = 20 * time.Second
	b.bridge(settings.ListenerOptions{}, settings.UpstreamOptions{Connections: 1, SlowStart: 1 << 10, Endpoints: []string{b.overTCP("up", newServer(b.book, true))}})
	for range 24 {
		g := b.client()
		c, err := g.dial()
		if err != nil {
			b.t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		var list []*outstanding
		for range 12 {
			o := g.call(read, 1<<20)
			b.book.transmit(o.id)
			if _, err := c.Write(testkit.Record(o.m)); err != nil {
				break
			}
			list = append(list, o)
		}
		defer g.book.abandon(list)
	}
	relieved := func() bool { return b.sum("rdmabridge_closed_clients_total", `reason="slow_reader"`) > 0 }
	if !testkit.Settles(20*time.Second, relieved) {
		b.t.Error("no client was closed")
	}
	b.sees(b.client(), mkdir, answered)
}

// slowStart is clients with full slot tables that find an upstream which does not answer yet.
func slowStart(b *bridgeFault) {
	s := newServer(b.book, true)
	b.callTimeout = 15 * time.Second
	b.bridge(settings.ListenerOptions{}, settings.UpstreamOptions{Connections: 1, Endpoints: []string{b.overTCP("up", s)}})
	s.stop()
	var wait []func()
	for range 20 {
		g := b.client()
		c, err := g.dial()
		if err != nil {
			b.t.Fatal(err)
		}
		defer c.Close()
		for range 8 {
			o := g.call(getattr, 0)
			b.book.transmit(o.id)
			_, _ = c.Write(testkit.Record(o.m))
			wait = append(wait, func() {
				if !g.answers(c) {
					b.t.Error("a client was closed")
				}
			})
		}
	}
	b.gauge("upstream_slow_start_waiting_clients")
	b.gauge("upstream_slow_start_calls")
	s.goOn()
	for _, f := range wait {
		f()
	}
}

// overRate is a client that sends more than it may.
func overRate(b *bridgeFault) {
	const rate, n = 25, 75 // a second's worth may go at once
	b.bridge(settings.ListenerOptions{ClientRate: gates.Rate{Calls: rate}}, settings.UpstreamOptions{Connections: 1, Endpoints: []string{b.overTCP("up", newServer(b.book, true))}})
	g := b.client()
	c, err := g.dial()
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	for range n {
		o := g.call(getattr, 0)
		b.book.transmit(o.id)
		_, _ = c.Write(testkit.Record(o.m))
	}
	b.sees(b.client(), getattr, answered)
	if b.sum("rdmabridge_listener_received_calls_total") > n {
		b.t.Error("another client waited until all was read")
	}
	for range n {
		if !g.answers(c) {
			b.t.Fatal("the client was closed")
		}
	}
	if d := time.Since(began); d < (n-rate)*time.Second/rate/2 {
		b.t.Errorf("%d Calls at %d a second took %v", n, rate, d)
	}
}

// removed is an upstream that is removed with Calls under way, and does not answer them.
func removed(b *bridgeFault) {
	b.callTimeout, b.unavailable = 2*time.Second, 200*time.Millisecond
	s := newServer(b.book, true)
	b.bridge(settings.ListenerOptions{}, settings.UpstreamOptions{Connections: 1, Endpoints: []string{b.overTCP("up", s)}})
	g := b.client()
	b.sees(g, getattr, answered)
	s.sicken()
	taken := s.taken.Load()
	wait := b.later(g, hung, closed)
	testkit.Settles(5*time.Second, func() bool { return s.taken.Load() > taken })
	err := b.proxy.Reconfigure(proxytest.Listeners(settings.ListenerOptions{Name: "in", Address: "127.0.0.1:0", Upstream: "next"}),
		proxytest.Upstreams(settings.UpstreamOptions{Name: "next", Endpoints: []string{b.overTCP("next", newServer(b.book, true))}}))
	if err != nil {
		b.t.Fatal(err)
	}
	b.sees(b.client(), mkdir, answered) // by the next one
	// The Call may be repeated. It is sent again after timeouts.call, and would wait as long once
	// more, if the removal ended no earlier.
	if d := wait(); d < b.callTimeout {
		b.t.Errorf("closed after %v already, with timeouts.call %v", d, b.callTimeout)
	}
	s.heal()
}

// drainEnds is a drain whose time is over while a Call is under way.
func drainEnds(b *bridgeFault) {
	s := newServer(b.book, true)
	b.bridge(settings.ListenerOptions{}, settings.UpstreamOptions{Connections: 1, Endpoints: []string{b.overTCP("up", s)}})
	g := b.client()
	b.sees(g, getattr, answered)
	s.stop()
	read := b.sum("rdmabridge_listener_received_calls_total")
	wait := b.later(g, getattr, closed)
	testkit.Settles(5*time.Second, func() bool { return b.sum("rdmabridge_listener_received_calls_total") > read })
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := b.proxy.Drain(ctx); err == nil || !strings.Contains(err.Error(), "clients left") {
		b.t.Errorf("drain: %v", err)
	}
	closing := make(chan struct{})
	go func() { defer close(closing); _ = b.proxy.Close() }()
	wait()
	s.goOn()
	<-closing
}

// lossyRows are those in which packets get lost.
var lossyRows = []bridgeRow{
	{
		"Host of the server vanishes: packets go nowhere, and nothing says so", vanishes("rdma"),
		[]string{"answered", "closed", "`timeouts.silent`"},
		[]string{"no connection to upstream", abandoned},
		[]string{`upstream_disconnects_total{reason="silent"`, inLimbo, lost},
	},
	{
		"Host of a TCP server vanishes", vanishes("tcp"),
		[]string{"answered", "closed", "`timeouts.silent`"},
		[]string{"no connection to upstream", abandoned},
		[]string{`upstream_disconnects_total{reason="silent"`, inLimbo, lost},
	},
	{
		"Many connections are lost at once", manyDials,
		[]string{"answered, late"},
		[]string{"no connection to upstream"},
		[]string{`upstream_disconnects_total`, `dials_waiting`, `dials_in_progress`},
	},
}

// bridgeRows are the others.
var bridgeRows = []bridgeRow{
	{
		"Server is stopped, and its host is not", stopped("rdma", true),
		[]string{"answered", "closed after `timeouts.call`"},
		[]string{"upstream answers nothing though its host is there; its Calls wait", "call not answered in time; connection closed", abandoned},
		[]string{`upstream_stalled_connections`, `upstream_disconnects_total{reason="deadline"`, inLimbo, lost},
	},
	{
		"TCP server is stopped, and its host is not", stopped("tcp", true),
		[]string{"answered", "closed after `timeouts.call`"},
		[]string{"upstream answers nothing though its host is there; its Calls wait", "no connection to upstream", abandoned},
		[]string{`upstream_stalled_connections`, `upstream_disconnects_total{reason="deadline"`, inLimbo, lost},
	},
	{
		"Server is stopped, and no Call is under way", stopped("tcp", false),
		[]string{"nothing"},
		[]string{"upstream answers nothing though its host is there; its Calls wait", "no connection to upstream"},
		[]string{`upstream_stalled_connections`, `upstream_probes_total{result="failed"`, `upstream_disconnects_total{reason="deadline"`},
	},
	{
		"One of several endpoints is away, `failover: off`", endpointLost(false),
		[]string{"closed after `timeouts.unavailable`", "answered"},
		[]string{"no connection to upstream", abandoned},
		[]string{`upstream_dial_errors_total`, `upstream_queue_expired_calls_total`},
	},
	{
		"One of several endpoints is away, `failover: on`", endpointLost(true),
		[]string{"answered"},
		[]string{"endpoint ejected", "endpoint is back"},
		[]string{`upstream_endpoint_ejections_total`, `upstream_ejected_endpoints`, `upstream_dial_errors_total`},
	},
	{"Memory for Calls is spent", noMemoryForCalls, []string{"not read from", "answered, late"}, nil, []string{`call_memory_waiting_connections`}},
	{
		"Memory for Replies is spent by clients that do not read", noMemoryForReplies,
		[]string{"closed", "answered, late"},
		[]string{"no memory is left for Replies and the client does not read its own; connection closed"},
		[]string{`closed_clients_total{reason="slow_reader"`},
	},
	{
		"Clients with full slot tables, and an upstream that has not answered yet", slowStart,
		[]string{"not read from", "answered, late"},
		nil,
		[]string{`upstream_slow_start_waits_total`, `upstream_slow_start_waiting_clients`, `upstream_slow_start_calls`},
	},
	{"Client is over its rate", overRate, []string{"not read from", "answered, late"}, nil, []string{`listener_rate_limit_waits_total{limit="client"`}},
	{
		"Upstream is removed by a reload while it does not answer", removed,
		[]string{"closed", "`timeouts.call`", "`timeouts.unavailable`"},
		[]string{"upstream removed with calls under way; their clients are closed", abandoned},
		[]string{`listener_calls_total{result="abandoned"`},
	},
	{"`drain.timeout` is over and a Call is not answered", drainEnds, []string{"closed"}, nil, []string{`listener_calls_total{result="client_gone"`}},
}

// TestBridgeFaults is TestFaults for faults that take more than one Call.
func TestBridgeFaults(t *testing.T) {
	doc := document(t)
	for i, r := range slices.Concat(lossyRows, bridgeRows) {
		t.Run(r.name, func(t *testing.T) {
			if i < len(lossyRows) {
				testkit.NeedsFilter(t)
			}
			t.Parallel()
			w := newWorld(t, 1, 32<<20)
			w.callTimeout, w.unavailable = 15*time.Second, 15*time.Second
			w.h.Log = zerolog.New(&w.logs).Level(zerolog.InfoLevel)
			b := &bridgeFault{world: w}
			r.do(b)
			metrics := slices.DeleteFunc(slices.Clone(r.metrics), func(m string) bool { return slices.Contains(b.up, m) })
			w.shows(b.before, "", metrics)
			for _, l := range r.log {
				w.shows(b.before, l, nil)
			}
			w.rest()
			w.close()
			written(t, doc, r.name, nil, "", slices.Concat(r.says, r.log, r.metrics))
		})
	}
}

// A row of the document: a name, and the text of its other cells.
var (
	tableRow  = regexp.MustCompile(`(?m)^\| ([^|]+) \| (.*) \|$`)
	quoted    = regexp.MustCompile("`([^`]+)`")
	elsewhere = regexp.MustCompile("`(Test[A-Za-z]+)` in ([a-z/]+)")
)

// TestFaultsDocument: each row of docs/faults.md has a test, here or where it says, and
// every message and every metric in it is one that the bridge has.
func TestFaultsDocument(t *testing.T) {
	doc := document(t)
	here := make(map[string]bool)
	for _, r := range rows {
		here[r.name] = true
	}
	for _, r := range clientRows {
		here[r.name] = true
	}
	for _, r := range slices.Concat(lossyRows, bridgeRows) {
		here[r.name] = true
	}
	source := sources(t, "../..", false)
	n := 0
	for _, m := range tableRow.FindAllStringSubmatch(doc, -1) {
		name, cells := m[1], strings.Split(m[2], " | ")
		if name == "Fault" {
			continue
		}
		n++
		tests := elsewhere.FindAllStringSubmatch(m[2], -1)
		if !here[name] && len(tests) == 0 {
			t.Errorf("%q: no test", name)
		}
		for _, x := range tests {
			if !strings.Contains(sources(t, "../../"+x[2], true), "func "+x[1]+"(t *testing.T) {") {
				t.Errorf("%q: %s has no %s", name, x[2], x[1])
			}
		}
		metrics, logs := cells[len(cells)-1], cells[len(cells)-2]
		for _, q := range quoted.FindAllStringSubmatch(logs, -1) {
			if w := q[1]; !strings.Contains(w, ".") && !strings.Contains(source, `"`+w+`"`) {
				t.Errorf("%q: the bridge never says %q", name, w)
			}
		}
		for _, q := range quoted.FindAllStringSubmatch(metrics, -1) {
			w, label, _ := strings.Cut(q[1], "{")
			if strings.ContainsAny(w, ". ") || strings.HasPrefix(w, "Test") {
				continue
			}
			_, value, _ := strings.Cut(strings.TrimSuffix(label, "}"), "=")
			if !strings.Contains(source, `"`+w+`"`) || !strings.Contains(source, value) {
				t.Errorf("%q: the bridge has no metric %q", name, q[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("%d rows were found", n)
	}
}

// sources are the Go files of a directory, or those of the tree that are no tests.
func sources(t *testing.T, dir string, tests bool) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (tests || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests:
			return nil
		}
		text, err := os.ReadFile(path)
		b.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
