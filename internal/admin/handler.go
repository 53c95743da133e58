// Package admin serves what operators look at over HTTP: the status page, the same as JSON, metrics,
// health checks, and profiles.
//
// A [Handler] answers, wherever it is mounted: on the admin address and on the control socket. It
// changes nothing in the bridge. A [Server] is the admin address: an HTTP server whose connections are
// bounded.
//
// # One source
//
// The page, the JSON and the commands of the CLI show one thing, a status.Document. The Handler asks its
// Source for it, and adds what has to be remembered for it: the history and the judgement of what is
// wrong. Whoever asks within 200 ms gets the same document, so a hundred open pages cost what one costs.
//
// # Bounds
//
// Whatever comes over HTTP is bounded: connections, headers, queries, the documents that are made in a
// second, and the answers that are kept. Nothing a client sends reaches the event loops but the query of
// a document.
package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A Source provides what a Handler answers with. All functions are called concurrently.
type Source struct {
	Document func(status.Query) status.Document // without History, Problems and Names; never nil
	Names    func() *status.Names               // counted only for those who ask; it may return nil, and be nil
	Metrics  http.Handler                       // of /metrics; nil for none
	Alive    func(context.Context) error        // nil if the event loops run; a nil function means always
	Ready    func() error                       // nil if the bridge can serve clients; a nil function means always
}

// A Handler answers the requests of operators. It is safe for concurrent use.
type Handler struct {
	source    Source
	mux       *http.ServeMux
	documents documents
	sampler   sampler
}

// NewHandler returns a Handler for source. It answers at once; the caller starts and closes it.
func NewHandler(source Source) *Handler {
	h := &Handler{source: source, mux: http.NewServeMux()}
	h.documents.init(h.shown)
	h.sampler.init(source.Document)
	if source.Metrics != nil {
		h.mux.Handle("/metrics", readOnly(source.Metrics))
	}
	h.mux.Handle("/livez", readOnly(http.HandlerFunc(h.livez)))
	h.mux.Handle("/readyz", readOnly(http.HandlerFunc(h.readyz)))
	h.mux.Handle("/{$}", readOnly(http.HandlerFunc(servePage)))
	h.handleAPI()
	h.handleProfiles()
	return h
}

// Start starts to write the history.
func (h *Handler) Start() { h.sampler.start() }

// Close ends what Start has started, if it was called. The Handler still answers.
func (h *Handler) Close() { h.sampler.close() }

// Problems returns what is wrong now, as the status page shows it.
func (h *Handler) Problems() []status.Problem { return h.make(status.Query{}).Problems }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.mux.ServeHTTP(w, r)
}

// make makes the document that q asks for.
func (h *Handler) make(q status.Query) *status.Document {
	d := h.source.Document(q)
	var before *status.Document
	d.History, before = h.sampler.view()
	d.Problems = status.Judge(&d, before)
	return &d
}

// shown makes the document that q asks for, for a reader.
func (h *Handler) shown(q status.Query) *status.Document {
	d := h.make(q)
	if h.source.Names != nil {
		d.Names = h.source.Names()
	}
	fillLists(d)
	return d
}

// fillLists makes empty lists and maps of nil ones: JSON has [] and {} for them, and a reader need not tell
// null from nothing.
func fillLists(d *status.Document) {
	list(&d.Problems)
	list(&d.Listeners)
	list(&d.Upstreams)
	list(&d.Tenants)
	list(&d.Clients.List)
	list(&d.Operations)
	if n := d.Names; n != nil {
		list(&n.Exports)
		list(&n.Files)
		list(&n.Clients)
	}
	list(&d.Memory.Accounts)
	list(&d.Events)
	for i := range d.Listeners {
		l := &d.Listeners[i]
		counts(&l.Paused)
		counts(&l.Calls)
		counts(&l.Refused)
		list(&l.Rules)
	}
	for i := range d.Tenants {
		t := &d.Tenants[i]
		counts(&t.Waiting)
		counts(&t.Waits)
		counts(&t.Refused)
	}
	for i := range d.Upstreams {
		u := &d.Upstreams[i]
		list(&u.Endpoints)
		list(&u.Connections)
		counts(&u.Calls)
		counts(&u.Disconnects)
	}
	for i := range d.Operations {
		o := &d.Operations[i]
		counts(&o.Statuses)
		list(&o.Latency.Bounds)
		list(&o.Latency.Counts)
	}
	for i := range d.Clients.List {
		list(&d.Clients.List[i].Upstreams)
		list(&d.Clients.List[i].Waiting)
	}
}

func list[T any](l *[]T) {
	if *l == nil {
		*l = []T{}
	}
}

func counts[N int | uint64](m *map[string]N) {
	if *m == nil {
		*m = map[string]N{}
	}
}

// readOnly refuses all methods but GET and HEAD.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, r.URL.Path+" can only be read: use GET. Actions go through the control socket, for example `rdmabridge drain`.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fail answers with text, which is a sentence.
func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

// livez reports whether the event loops run. Upstreams do not count: a restart would not
// repair a server, but it would disconnect every client.
func (h *Handler) livez(w http.ResponseWriter, r *http.Request) {
	if h.source.Alive == nil {
		answer(w, nil)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	answer(w, h.source.Alive(ctx))
}

// readyz reports whether the bridge can serve clients.
func (h *Handler) readyz(w http.ResponseWriter, _ *http.Request) {
	if h.source.Ready == nil {
		answer(w, nil)
		return
	}
	answer(w, h.source.Ready())
}

// answer writes "ok", or err with status 503.
func answer(w http.ResponseWriter, err error) {
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	fail(w, http.StatusOK, "ok")
}
