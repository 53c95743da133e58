package admin

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			h.ServeHTTP(w, r)
			return
		}
		// The page refreshes itself more often: the test need not wait.
		r.Header.Del("Accept-Encoding")
		made := httptest.NewRecorder()
		h.ServeHTTP(made, r)
		maps.Copy(w.Header(), made.Header())
		w.Header().Del("Content-Length")
		_, _ = io.WriteString(w, strings.Replace(made.Body.String(), "<html ", `<html data-every="250" `, 1))
	}))
	t.Cleanup(s.Close)
	return s
}

// listen listens at an address that was in use a moment ago.
func listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }
