package observe

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestUpstreamComesBack: the series of an upstream that two reloads have removed and brought back between two
// scrapes are there.
func TestUpstreamComesBack(t *testing.T) {
	r := metrics.New()
	m := NewDocumentMetrics(r)
	d := &status.Document{Upstreams: []status.Upstream{{Name: "storage", State: status.Up, Wanted: 4, TCP: &status.TCP{Segments: 7}}}}
	count := func() (n int) {
		m.Set(d)
		all, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			for _, s := range f.GetMetric() {
				for _, l := range s.GetLabel() {
					if l.GetValue() == "storage" {
						n++
					}
				}
			}
		}
		return n
	}
	want := count()
	r.Forget("upstream", "storage")
	if got := count(); got != want || want == 0 {
		t.Errorf("%d series after the upstream came back, want %d", got, want)
	}
}
