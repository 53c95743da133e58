package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// TestStatusPageAsleep: an upstream whose connections sleep is not shown as down.
func TestStatusPageAsleep(t *testing.T) {
	page := func(st status.Upstream) string {
		t.Helper()
		var b strings.Builder
		data := statusData{Status: status.Document{Upstreams: []status.Upstream{st}}}
		if err := statusPage.Execute(&b, data); err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(b.String(), "<h2>Upstreams</h2>")
		text, _, _ = strings.Cut(text, "</table>")
		return text
	}
	up, asleep, down := status.Connection{State: status.ConnectionUp}, status.Connection{State: status.ConnectionAsleep}, status.Connection{State: status.ConnectionDown}
	now := time.Now()
	for _, tt := range []struct {
		name string
		st   status.Upstream
		want []string
		not  []string
	}{
		{"one up", status.Upstream{State: status.Up, Connections: []status.Connection{up, asleep}, Usable: 1, Wanted: 1, Asleep: 1}, []string{"good", "1 of 1 up, 1 asleep", "<td>up", "<td>asleep"}, []string{"down", "bad"}},
		{"all asleep", status.Upstream{State: status.Asleep, Connections: []status.Connection{asleep}, Asleep: 1}, []string{"good", "0 of 0 up, 1 asleep"}, []string{"down", "bad"}},
		{"down", status.Upstream{State: status.Down, Connections: []status.Connection{down, asleep}, Asleep: 1, DownSince: &now}, []string{"bad", "<td>down"}, []string{"good"}},
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
