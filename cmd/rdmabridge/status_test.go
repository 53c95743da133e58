package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy"
)

// TestStatusPageAsleep: an upstream whose connections sleep is not shown as down.
func TestStatusPageAsleep(t *testing.T) {
	page := func(st pool.Stats) string {
		t.Helper()
		var b strings.Builder
		data := statusData{Status: proxy.Status{Upstreams: []proxy.UpstreamStatus{{Stats: st}}}}
		if err := statusPage.Execute(&b, data); err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(b.String(), "<h2>Upstreams</h2>")
		text, _, _ = strings.Cut(text, "</table>")
		return text
	}
	up, asleep, down := pool.SeatStats{Up: true}, pool.SeatStats{Asleep: true}, pool.SeatStats{}
	for _, tt := range []struct {
		name string
		st   pool.Stats
		want []string
		not  []string
	}{
		{"one up", pool.Stats{Connections: []pool.SeatStats{up, asleep}, Usable: 1, Asleep: 1}, []string{"good", "1 of 2 up, 1 asleep", "<td>up", "<td>asleep"}, []string{"down", "bad"}},
		{"all asleep", pool.Stats{Connections: []pool.SeatStats{asleep}, Asleep: 1}, []string{"good", "0 of 1 up, 1 asleep"}, []string{"down", "bad"}},
		{"down", pool.Stats{Connections: []pool.SeatStats{down, asleep}, Asleep: 1, DownSince: time.Now()}, []string{"bad", "<td>down"}, []string{"good"}},
	} {
		got := page(tt.st)
		for _, w := range tt.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: the page does not say %q:\n%s", tt.name, w, got)
			}
		}
		for _, w := range tt.not {
			if strings.Contains(got, w) {
				t.Errorf("%s: the page says %q:\n%s", tt.name, w, got)
			}
		}
	}
}
