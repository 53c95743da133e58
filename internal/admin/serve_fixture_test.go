package admin

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// serveFixture serves f with the history and the document of half a minute ago that it would have.
func serveFixture(t testing.TB, f *fixture) *httptest.Server {
	t.Helper()
	h := NewHandler(Source{Document: f.Document})
	t.Cleanup(h.Close)
	h.sampler.history = f.history()
	if !f.empty {
		past := *f
		past.began = f.began.Add(30 * time.Second)
		d := past.Document(status.Query{})
		d.Time, d.Started = d.Time.Add(-30*time.Second), f.began.Add(-time.Hour)
		for i := range d.Clients.List {
			c := &d.Clients.List[i]
			c.Since = c.Since.Add(-30 * time.Second)
		}
		h.sampler.recent = append(h.sampler.recent, &d)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}
