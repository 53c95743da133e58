package proxy_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// eachUpstream calls f with a proxy of one TCP listener, nfs, and one upstream, storage, over TCP and over
// RDMA.
func eachUpstream(t *testing.T, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions), f func(t *testing.T, h *proxytest.Harness, p *proxy.Proxy)) {
	for name, rdma := range map[string]bool{"tcp": false, "rdma": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			l := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
			u := settings.UpstreamOptions{Name: "storage"}
			if rdma {
				provider := fabrictest.NewLoopback()
				on := fabrictest.NewLoop()
				t.Cleanup(on.Stop)
				h.RDMAServer(provider, []loop.Loop{on}, "storage", 8, b)
				u.RDMA, u.Provider, u.Endpoints = true, provider, []string{"storage"}
			} else {
				u.Endpoints = []string{h.TCPServer(b).Addr()}
			}
			if change != nil {
				change(&l, &u)
			}
			f(t, h, h.Proxy([]settings.ListenerOptions{l}, []settings.UpstreamOptions{u}))
		})
	}
}

// TestStatus: the Document has what clients did, and its parts agree.
func TestStatus(t *testing.T) {
	eachUpstream(t, proxytest.Behaviour{}, nil, func(t *testing.T, h *proxytest.Harness, p *proxy.Proxy) {
		c := h.Client(p.Addr("nfs"))
		for i := range uint32(10) {
			check(t, c, proxytest.GetattrCall(i+1))
		}
		var d status.Document
		h.Eventually("all Calls are counted", func() bool {
			d = p.Status(status.Query{Connections: true})
			return len(d.Operations) > 0 && d.Operations[0].Calls == 10
		})
		o := d.Operations[0]
		if o.Program != "nfs" || o.Version != 3 || o.Operation != "GETATTR" || o.Upstream != "storage" || o.InFlight != 0 {
			t.Errorf("operation %+v", o)
		}
		n, of := uint64(0), uint64(0)
		for _, b := range o.Latency.Counts {
			n += b
		}
		for _, s := range o.Statuses {
			of += s
		}
		if n != 10 || of != 10 || len(o.Statuses) != 1 || o.Phases.Server <= 0 || o.BytesIn == 0 || o.BytesOut == 0 {
			t.Errorf("%d Calls in the histogram, %d in %v, phases %+v, %+v", n, of, o.Statuses, o.Phases, o.Traffic)
		}
		l, u := d.Listeners[0], d.Upstreams[0]
		if l.Traffic != o.Traffic || u.BytesIn != o.BytesOut || u.Phases != o.Phases || l.Calls["replied"] != 10 || u.Calls["replied"] != 10 || l.Accepted != 1 {
			t.Errorf("listener %+v\nupstream %+v\noperation %+v", l, u, o)
		}
		if u.State != status.Up || u.Credits.Granted == 0 || u.Credits.Granted > u.Credits.Requested || len(u.Connections) != u.Usable {
			t.Errorf("upstream %+v", u)
		}
		if d.Clients.Total != 1 || len(d.Clients.List) != 1 {
			t.Fatalf("clients %+v", d.Clients)
		}
		if s := d.Clients.List[0]; s.Phases.Calls != 10 || s.Traffic != o.Traffic || s.InFlight != 0 || len(s.Waiting) != 0 || len(s.Upstreams) != 1 || s.TCP == nil {
			t.Errorf("client %+v", s)
		}
	})
}

// TestPhases: the time of a Call counts where the Call was.
func TestPhases(t *testing.T) {
	const long = 200 * time.Millisecond
	eachUpstream(t, proxytest.Behaviour{}, func(l *settings.ListenerOptions, u *settings.UpstreamOptions) {
		l.MaxCalls = 2
		u.Connections, u.Credits = 1, 1
	}, func(t *testing.T, h *proxytest.Harness, p *proxy.Proxy) {
		c := h.Client(p.Addr("nfs"))
		var replies []<-chan []byte
		for i := range uint32(3) { // the second waits for the credit of the first, and the third is not read
			ch, err := c.Go(proxytest.EchoCall(i+1, 40, 40, int(long/time.Millisecond)))
			if err != nil {
				t.Fatal(err)
			}
			replies = append(replies, ch)
		}
		h.Eventually("the oldest Call is seen, and why the third is not read", func() bool {
			d := p.Status(status.Query{})
			if len(d.Clients.List) == 0 {
				return false
			}
			s := d.Clients.List[0]
			return s.OldestXID == 1 && s.InFlight == 2 && len(s.Waiting) == 1 && s.Waiting[0] == "calls" && d.Listeners[0].Paused["calls"] == 1
		})
		for _, ch := range replies {
			<-ch
		}
		var ph status.Phases
		h.Eventually("all are counted", func() bool {
			ph = p.Status(status.Query{}).Upstreams[0].Phases
			return ph.Calls == 3
		})
		if least := long.Seconds(); ph.Server < 3*least || ph.Credit < least*0.9 || ph.Admission < least*0.9 || ph.Client > ph.Server {
			t.Errorf("phases %+v", ph)
		}
		if s := p.Status(status.Query{}).Clients.List[0]; s.Paused <= 0 {
			t.Errorf("the client was never paused: %+v", s)
		}
	})
}

// TestStatusOfDeafLoop: a loop that hangs delays the document once, not once for each upstream.
func TestStatusOfDeafLoop(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	server := h.TCPServer(proxytest.Behaviour{})
	var us []settings.UpstreamOptions
	for i := range 8 {
		us = append(us, settings.UpstreamOptions{Name: "storage" + strconv.Itoa(i), Endpoints: []string{server.Addr()}, Connections: 2})
	}
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage0"}}, us)
	h.Eventually("all connections are there", func() bool {
		return !slices.ContainsFunc(p.Status(status.Query{}).Upstreams, func(u status.Upstream) bool { return u.Usable < 2 })
	})
	hangs, goOn := make(chan struct{}), make(chan struct{})
	h.Engine.Loops()[0].Post(loop.TaskFunc(func() { close(hangs); <-goOn }))
	<-hangs
	defer close(goOn)
	start := time.Now()
	p.Status(status.Query{Connections: true})
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("the document took %v", d)
	}
}

type shapes struct{ all chan string }

func (shapes) Wants(*observe.CallRecord) bool  { return true }
func (s shapes) Observe(r *observe.CallRecord) { s.all <- r.Shape }

// TestObservedShape: an Observer learns how a Call has travelled over RDMA.
func TestObservedShape(t *testing.T) {
	eachUpstream(t, proxytest.Behaviour{}, nil, func(t *testing.T, h *proxytest.Harness, p *proxy.Proxy) {
		s := shapes{make(chan string, 2)}
		p.SetObserver(s)
		check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
		want := ""
		if p.Status(status.Query{}).Upstreams[0].Transport == "rdma" {
			want = "inline"
		}
		if got := <-s.all; got != want {
			t.Errorf("shape %q, want %q", got, want)
		}
	})
}

// TestPauseCountsWhileItLasts: a client may not be read from for hours, and the metric says so meanwhile.
func TestPauseCountsWhileItLasts(t *testing.T) {
	eachUpstream(t, proxytest.Behaviour{}, func(l *settings.ListenerOptions, _ *settings.UpstreamOptions) {
		l.MaxCalls = 1
	}, func(t *testing.T, h *proxytest.Harness, p *proxy.Proxy) {
		c := h.Client(p.Addr("nfs"))
		reply, err := c.Go(proxytest.EchoCall(1, 40, 40, 500))
		if err != nil {
			t.Fatal(err)
		}
		h.Eventually("the client is not read from", func() bool { return p.Status(status.Query{}).Listeners[0].Paused["calls"] == 1 })
		p.Status(status.Query{})
		all, err := h.Metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		paused := 0.0
		for _, f := range all {
			if f.GetName() == metrics.ListenerPausedSeconds.FullName() {
				for _, m := range f.GetMetric() {
					paused += m.GetCounter().GetValue()
				}
			}
		}
		if paused <= 0 {
			t.Error("the pause does not count")
		}
		<-reply
	})
}
