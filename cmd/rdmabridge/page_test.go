package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/browser"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// figures are numbers that the page, the JSON and /metrics all have.
type figures struct {
	Calls    uint64 // answered READs
	Bytes    uint64 // of the Replies to them
	Listener uint64 // Calls of the listener that were answered
	Upstream uint64 // Calls that the upstream has answered
	Clients  uint64
	Granted  uint64
}

func (f *figures) all() []uint64 {
	return []uint64{f.Calls, f.Bytes, f.Listener, f.Upstream, f.Clients, f.Granted}
}

// between reports whether f lies between a and b, number by number.
func (f *figures) between(a, b *figures) bool {
	low, high := a.all(), b.all()
	for i, n := range f.all() {
		if n < low[i] || n > high[i] {
			return false
		}
	}
	return true
}

// askDocument asks the admin server for a document.
func askDocument(t *testing.T, url string) (d status.Document) {
	t.Helper()
	code, body := get(t, url+"/api/v1/status?connections=true")
	if err := json.Unmarshal([]byte(body), &d); code != 200 || err != nil {
		t.Fatalf("%d %v %s", code, err, body)
	}
	return d
}

func figuresOf(d *status.Document) (f figures) {
	for i := range d.Operations {
		if o := &d.Operations[i]; o.Operation == "READ" {
			f.Calls, f.Bytes = o.Calls, o.BytesOut
		}
	}
	f.Listener, f.Clients = d.Listeners[0].Calls["replied"], uint64(d.Listeners[0].Clients)
	f.Upstream, f.Granted = d.Upstreams[0].Calls["replied"], uint64(d.Upstreams[0].Credits.Granted)
	return f
}

// scraped reads the same from /metrics.
func scraped(t *testing.T, url string) figures {
	t.Helper()
	_, text := get(t, url+"/metrics")
	// number returns the value of the series whose line begins with name and has all labels.
	number := func(name string, labels ...string) uint64 {
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "rdmabridge_"+name+"{") {
				continue
			}
			has := true
			for _, l := range labels {
				has = has && strings.Contains(line, l)
			}
			if has {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				return uint64(v)
			}
		}
		t.Fatalf("/metrics has no %s %q", name, labels)
		return 0
	}
	return figures{
		Calls: number("operation_calls_total", `operation="READ"`, `status="ok"`), Bytes: number("operation_sent_bytes_total", `operation="READ"`),
		Listener: number("listener_calls_total", `result="replied"`), Upstream: number("upstream_calls_total", `outcome="replied"`),
		Clients: number("listener_clients"), Granted: number("upstream_credits_granted"),
	}
}

// shown reads what the page shows of it in whole numbers; the others are those of f.
func shown(t *testing.T, p *browser.Page, f figures) figures {
	t.Helper()
	text := browser.Eval[[]string](p, `(() => {
		const fact = [...document.querySelectorAll("#upstreams dl div")].find((e) => e.firstChild.textContent === "Calls so far").lastChild.textContent;
		const credits = [...document.querySelectorAll("#upstreams .halves p")][0].textContent;
		return [fact.match(/replied ([\d,]+)/)?.[1] ?? "0", document.querySelector("#listeners tbody td").firstChild.data, credits.match(/of ([\d,]+) granted/)[1]];
	})()`)
	for i, n := range []*uint64{&f.Upstream, &f.Clients, &f.Granted} {
		v, err := strconv.ParseUint(strings.ReplaceAll(text[i], ",", ""), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		*n = v
	}
	return f
}

// TestStatusPage: a bridge with 64 connections under load, seen in Chromium. At each instant the page, the
// JSON and /metrics agree: what each of them says lies between two documents around it. When the load has
// ended, they are equal.
func TestStatusPage(t *testing.T) {
	chromium := browser.Start(t)
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	server, err := bench.StartServer(bench.ServerOptions{
		Address: "127.0.0.1:0", Loops: 1, Budget: 256 << 20, Credits: 16, CallInline: 4096, ReplyInline: 4096, Log: log, Provider: proxytest.IWARP(iwarp.Options{Log: log}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	b, signals, wait := startServe(t, fmt.Sprintf(`
listeners: [{name: nfs, address: "127.0.0.1:0", upstream: storage}]
upstreams: [{name: storage, transport: rdma, endpoints: [%q], pool: {connections: 64, credits: 16, idle: none}}]
memory: {budget: 512MiB}
admin: {address: "127.0.0.1:0"}
control: {path: none}
loops: 2
`, server.Addr()))
	url := "http://" + b.admin.Addr()
	loader, err := bench.NewLoader(bench.LoaderOptions{Loops: 1, Budget: 64 << 20, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	work := bench.Work{Mix: "nfs3:read=50,write=30,getattr=20", Size: 16 << 10}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := loader.Run(ctx, bench.Load{Target: b.proxy.Addr("nfs"), Conns: 12, Depth: 4, Work: work, Rate: 400, Duration: 30 * time.Second, Timeout: testkit.Patience})
		ended <- err
	}()
	testkit.Eventually(t, "all connections are there, and Calls are answered", func() bool {
		d := askDocument(t, url)
		return d.Upstreams[0].Usable == 64 && len(d.Operations) == 3 && d.Upstreams[0].Phases.Calls > 100
	})

	p := chromium.Open(t, url, browser.Look{Width: 1280, Height: 900})
	p.Until("rates are shown", "document.querySelector('#operations tbody td:nth-child(4)') && !document.querySelector('#operations tbody td:nth-child(4)').textContent.includes('…')")
	// later returns a document that was made after now.
	later := func() (d status.Document) {
		now := time.Now()
		testkit.Eventually(t, "another document is made", func() bool { d = askDocument(t, url); return d.Time.After(now) })
		return d
	}
	for range 5 {
		before := later()
		a := figuresOf(&before)
		m := scraped(t, url)
		// The page may show a document of two seconds ago, so it is asked for one that is newer than a.
		p.Until("the page has a newer document", fmt.Sprintf("(() => { const e = [...document.querySelectorAll('#upstreams dl div')].find((e) => e.firstChild.textContent === 'Calls so far'); return Number((e.lastChild.textContent.match(/replied ([\\d,]+)/)?.[1] ?? '0').replaceAll(',', '')) >= %d })()", a.Upstream))
		page := shown(t, p, a)
		after := later()
		z := figuresOf(&after)
		if !m.between(&a, &z) {
			t.Errorf("/metrics say %+v between %+v and %+v", m, a, z)
		}
		if !page.between(&a, &z) {
			t.Errorf("the page says %+v between %+v and %+v", page, a, z)
		}
		if a.Calls >= z.Calls {
			t.Error("there is no load")
		}
		consistent(t, &after)
	}
	if s := browser.Eval[string](p, "document.querySelector('#upstreams summary').textContent"); s != "64 connections: 64 up" {
		t.Errorf("the page says %q", s)
	}
	cancel()
	<-ended
	testkit.Eventually(t, "the load has ended", func() bool {
		d := later()
		f := figuresOf(&d)
		m := scraped(t, url)
		return f.Clients == 0 && f == m
	})
	last := later()
	f := figuresOf(&last)
	p.Until("the page shows the end", "document.querySelector('#listeners tbody td').firstChild.data === '0'")
	if got := shown(t, p, f); got != f {
		t.Errorf("at rest the page says %+v, the JSON %+v", got, f)
	}
	for _, e := range p.Errors() {
		t.Errorf("the console says: %s", e)
	}
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, url+"/") {
			t.Errorf("the page asks for %s", r)
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// consistent checks that a document agrees with itself.
func consistent(t *testing.T, d *status.Document) {
	t.Helper()
	u := &d.Upstreams[0]
	up, granted := 0, 0
	for i := range u.Connections {
		c := &u.Connections[i]
		granted += c.Credits.Granted
		if c.State == status.ConnectionUp {
			up++
		} else if c.Credits.Granted > 0 {
			t.Errorf("a connection that is %s has %d credits", c.State, c.Credits.Granted)
		}
	}
	if up != u.Usable || granted != u.Credits.Granted || u.State != status.Up {
		t.Errorf("the upstream is %s with %d connections and %d credits, its connections are %d with %d", u.State, u.Usable, u.Credits.Granted, up, granted)
	}
	for _, p := range d.Problems {
		// A machine that is busy with other tests may be slow.
		if p.Code != status.CodeServerSlow && p.Code != status.CodeStuck && p.Code != status.CodeClientSlow {
			t.Errorf("a healthy bridge has a problem: %+v", p)
		}
	}
}
