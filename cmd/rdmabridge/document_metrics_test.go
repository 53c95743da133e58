package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestDocumentMetrics: the series of a document are those of what it has. They end with their listener, upstream
// or endpoint, and what the kernel counts for each connection counts on when connections end.
func TestDocumentMetrics(t *testing.T) {
	r := metrics.New()
	m := newDocumentMetrics(r)
	upstream := func(segments uint64, endpoints ...string) status.Upstream {
		u := status.Upstream{Name: "s", State: status.Up, Wanted: 2, TCP: &status.TCP{Segments: segments, RTT: 0.25}}
		for _, e := range endpoints {
			u.Endpoints = append(u.Endpoints, status.Endpoint{Address: e, State: status.EndpointEjected, Connections: 1})
		}
		return u
	}
	set := func(d status.Document) string {
		m.set(&d)
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return "\n" + w.Body.String()
	}
	want := func(text string, lines ...string) {
		t.Helper()
		for _, l := range lines {
			if !strings.Contains(text, "\nrdmabridge_"+l+"\n") {
				t.Errorf("no %s in%s", l, text)
			}
		}
	}
	text := set(status.Document{
		State:     status.Ready,
		Listeners: []status.Listener{{Name: "s", Accepted: 7, InFlight: 3, Paused: map[string]int{"unread": 2}}},
		Upstreams: []status.Upstream{upstream(100, "a:1", "b:1")},
		Memory:    status.Memory{Accounts: []status.Account{{Name: "calls", Limit: 10, Used: 4, Refused: 1}}},
	})
	want(text,
		`state{state="ready"} 1`, `state{state="draining"} 0`, `listener_up{listener="s"} 1`, `listener_accepted_connections_total{listener="s"} 7`,
		`listener_paused_clients{listener="s",reason="unread"} 2`, `listener_paused_clients{listener="s",reason="memory"} 0`,
		`upstream_state{state="up",upstream="s"} 1`, `upstream_endpoint_ejected{endpoint="b:1",upstream="s"} 1`,
		`upstream_tcp_sent_segments_total{upstream="s"} 100`, `upstream_tcp_rtt_seconds{upstream="s"} 0.25`,
		`memory_account_limit_bytes{account="calls"} 10`, `memory_account_refused_leases_total{account="calls"} 1`,
	)
	set(status.Document{State: status.Draining, Upstreams: []status.Upstream{upstream(150, "a:1")}})
	text = set(status.Document{State: status.Draining, Upstreams: []status.Upstream{upstream(30, "a:1")}}) // a connection has ended
	want(text, `state{state="draining"} 1`, `upstream_tcp_sent_segments_total{upstream="s"} 150`, `upstream_endpoint_ejected{endpoint="a:1",upstream="s"} 1`)
	for _, gone := range []string{"b:1", `listener="s"`, "memory_account"} {
		if strings.Contains(text, gone) {
			t.Errorf("%s is left in%s", gone, text)
		}
	}
	text = set(status.Document{State: status.Ready, Upstreams: []status.Upstream{upstream(50, "a:1")}})
	want(text, `upstream_tcp_sent_segments_total{upstream="s"} 170`)
	if text = set(status.Document{State: status.Ready}); strings.Contains(text, "upstream") {
		t.Errorf("series of an upstream are left in%s", text)
	}
}
