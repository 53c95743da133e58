package admin

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

var update = flag.Bool("update", false, "write testdata/members.txt anew")

// ask answers one request of a loopback client.
func ask(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "127.0.0.1:9090"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newFixtureHandler(t testing.TB, f *fixture) *Handler {
	f.began = time.Now()
	h := NewHandler(Source{Document: f.Document, Metrics: http.NotFoundHandler()})
	t.Cleanup(h.Close)
	return h
}

// TestQueries: what cannot be meant is refused, with a sentence that says what can.
func TestQueries(t *testing.T) {
	h := newFixtureHandler(t, &fixture{upstream: 4, clients: 60})
	for _, tt := range []struct {
		target string
		code   int
		says   string
	}{
		{"/api/v1/status", 200, `"state":"ready"`},
		{"/api/v1/status?clients=3&sort=bytes&filter=10.20&connections=true", 200, `"shown":3`},
		{"/api/v1/clients?limit=all", 200, `"shown":60`},
		{"/api/v1/clients?limit=-1", 200, `"shown":60`},
		{"/api/v1/clients?limit=0", 200, `"shown":50`},
		{"/api/v1/clients?sort=", 200, `"sort":"waiting"`},
		{"/api/v1/upstreams", 200, `"kind":"shared"`},
		{"/api/v1/upstreams?connections=false", 200, `"connections":[]`},
		{"/api/v1/memory", 200, `"budget"`},
		{"/api/v1/history", 200, `"step":5`},
		{"/api/v1/events", 200, `"endpoint_ejected"`},
		{"/api/v1/operations", 200, `"READ"`},
		{"/api/v1/listeners", 200, `"nfs-rdma"`},
		{"/api/v1/problems", 200, `"upstream_down"`},
		{"/api/v1/clients?sort=size", 400, `sort="size" is not known; use one of waiting, bytes, oldest, calls, address.`},
		{"/api/v1/clients?limit=ten", 400, `limit="ten" is not allowed; use a number up to 10000, or all.`},
		{"/api/v1/clients?limit=10001", 400, "up to 10000"},
		{"/api/v1/clients?limit=1&limit=2", 400, "The parameter limit is given 2 times."},
		{"/api/v1/clients?order=up", 400, `no parameter "order"; it takes sort, filter, limit.`},
		{"/api/v1/status?connections=perhaps", 400, "use true or false."},
		{"/api/v1/memory?clients=1", 400, `This path takes no parameter "clients".`},
		{"/api/v1/clients?filter=" + strings.Repeat("x", 201), 400, "at most 200 octets"},
		{"/api/v1/clients?filter=%ff", 400, "UTF-8"},
		{"/api/v1/clients?%zz", 400, "cannot be read"},
		{"/api/v1/clients?" + strings.Repeat("a", 5000) + "=1", 400, "..."},
		{"/api/v1/nothing", 404, ""},
		{"/api/v1/", 404, ""},
		{"/nothing", 404, ""},
	} {
		w := ask(h, "GET", tt.target)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%.80s: %d %.300s", tt.target, w.Code, w.Body)
		}
		if tt.code == 400 && (w.Body.Len() > 300 || !strings.HasSuffix(w.Body.String(), ".\n")) {
			t.Errorf("%.80s: no sentence: %s", tt.target, w.Body)
		}
	}
}

// TestReadOnly: nothing can be written, and every answer has the headers that keep it to itself.
func TestReadOnly(t *testing.T) {
	h := newFixtureHandler(t, &fixture{upstream: 4, clients: 3})
	for _, path := range []string{"/", "/api/v1/status", "/api/v1/clients", "/metrics", "/livez", "/readyz", "/debug/pprof/symbol", "/nothing"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "GET", "HEAD"} {
			w := ask(h, method, path)
			reads := method == "GET" || method == "HEAD"
			if path != "/nothing" && !reads && (w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD") {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
			for header, want := range map[string]string{
				"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
				"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
			} {
				if got := w.Header().Get(header); got != want {
					t.Errorf("%s %s: %s is %q", method, path, header, got)
				}
			}
			if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || !strings.Contains(p, "frame-ancestors 'none'") || strings.Contains(p, "unsafe-eval") || path == "/" && strings.Contains(p, "unsafe") {
				t.Errorf("%s %s: the policy is %q", method, path, p)
			}
		}
	}
}

// TestGzip: a client that reads gzip gets the same.
func TestGzip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // both requests are for one document, which is fresh for a moment
		h := newFixtureHandler(t, &fixture{upstream: 4, clients: 60})
		for _, path := range []string{"/", "/api/v1/status"} {
			plain := ask(h, "GET", path, "Accept-Encoding", "br, gzip;q=0")
			small := ask(h, "GET", path, "Accept-Encoding", "br, gzip")
			if plain.Header().Get("Content-Encoding") != "" || small.Header().Get("Content-Encoding") != "gzip" || small.Body.Len() > plain.Body.Len()/2 {
				t.Fatalf("%s: %d octets, and %d of %q", path, plain.Body.Len(), small.Body.Len(), small.Header().Get("Content-Encoding"))
			}
			z, err := gzip.NewReader(small.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(z); err != nil || string(got) != plain.Body.String() {
				t.Errorf("%s: gzip has something else: %v", path, err)
			}
		}
	})
}

// TestProfiles: only programs on the bridge's host get profiles.
func TestProfiles(t *testing.T) {
	h := newFixtureHandler(t, &fixture{empty: true})
	for _, tt := range []struct {
		name, remote, local string
		header              []string
		code                int
	}{
		{"loopback", "127.0.0.1:40000", "tcp", nil, 200},
		{"loopback by name", "127.0.0.1:40000", "tcp", []string{"Host", "localhost:9090"}, 200},
		{"IPv6", "[::1]:40000", "tcp", []string{"Host", "[::1]:9090"}, 200},
		{"IPv4 in IPv6", "[::ffff:127.0.0.1]:40000", "tcp", []string{"Host", "[::1]"}, 200},
		{"the control socket", "@", "unix", []string{"Host", "control"}, 200},
		{"another host", "192.0.2.7:40000", "tcp", nil, 403},
		{"no address", "@", "tcp", nil, 403},
		{"a name that resolves to loopback", "127.0.0.1:40000", "tcp", []string{"Host", "attacker.example:9090"}, 403},
		{"a name that looks like loopback", "127.0.0.1:40000", "tcp", []string{"Host", "127.0.0.1.example:9090"}, 403},
		{"no name", "127.0.0.1:40000", "tcp", []string{"Host", ""}, 403},
		{"a proxy", "127.0.0.1:40000", "tcp", []string{"X-Forwarded-For", "192.0.2.7"}, 403},
		{"another site", "127.0.0.1:40000", "tcp", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"this site", "127.0.0.1:40000", "tcp", []string{"Sec-Fetch-Site", "same-origin"}, 200},
	} {
		r := httptest.NewRequest("GET", "/debug/pprof/goroutine?debug=1", nil)
		r.RemoteAddr, r.Host = tt.remote, "127.0.0.1:9090"
		for i := 0; i < len(tt.header); i += 2 {
			if tt.header[i] == "Host" {
				r.Host = tt.header[i+1]
			} else {
				r.Header.Set(tt.header[i], tt.header[i+1])
			}
		}
		var local net.Addr = &net.TCPAddr{}
		if tt.local == "unix" {
			local = &net.UnixAddr{Net: "unix"}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(contextWithLocal(r, local)))
		if w.Code != tt.code || tt.code == 200 && !strings.Contains(w.Body.String(), "goroutine profile") {
			t.Errorf("%s: %d %.200s", tt.name, w.Code, w.Body)
		}
	}
}

// TestNames: names are counted for whoever reads the document, and for nobody else.
func TestNames(t *testing.T) {
	counted := 0
	synctest.Test(t, func(t *testing.T) {
		h := NewHandler(Source{
			Document: func(status.Query) status.Document { return status.Document{Time: time.Now()} },
			Names:    func() *status.Names { counted++; return &status.Names{Known: 4711} },
		})
		h.Start()
		defer h.Close()
		time.Sleep(time.Minute)
		h.Problems()
		if counted != 0 {
			t.Errorf("counted %d times for nobody", counted)
		}
		if w := ask(h, "GET", "/api/v1/status"); counted != 1 || !strings.Contains(w.Body.String(), "4711") {
			t.Errorf("counted %d times for a reader: %s", counted, w.Body)
		}
	})
}

// TestShared: a hundred readers cost what one costs, and each query has its own answer.
func TestShared(t *testing.T) {
	var made atomic.Int64
	h := NewHandler(Source{Document: func(q status.Query) status.Document {
		made.Add(1)
		return status.Document{Clients: status.Clients{Sort: q.Sort}}
	}})
	synctest.Test(t, func(t *testing.T) {
		for range 10 {
			before := made.Load()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if w := ask(h, "GET", "/api/v1/status"); w.Code != 200 || !strings.Contains(w.Body.String(), `"sort":"waiting"`) {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			wg.Wait()
			if n := made.Load() - before; n != 1 {
				t.Errorf("%d documents were made at once", n)
			}
			time.Sleep(2 * time.Second)
		}
		// A client that asks for something else each time is slowed down.
		before := made.Load()
		refused := 0
		for i := range 500 {
			w := ask(h, "GET", "/api/v1/clients?filter="+strings.Repeat("x", i%150)+"&limit="+"1"+strings.Repeat("0", i%3))
			if w.Code == 429 {
				refused++
				if w.Header().Get("Retry-After") == "" || !strings.HasPrefix(w.Body.String(), "Too many") {
					t.Errorf("refused with %q", w.Body)
				}
			}
		}
		if n := made.Load() - before; n > makeBurst || refused == 0 {
			t.Errorf("%d documents were made at once, %d requests were refused", n, refused)
		}
		if n := len(h.documents.kept); n > mostKept {
			t.Errorf("%d documents are kept", n)
		}
		// Others still get an answer soon.
		time.Sleep(makeEvery)
		if w := ask(h, "GET", "/api/v1/status"); w.Code != 200 {
			t.Errorf("after that: %d %s", w.Code, w.Body)
		}
	})
}

// TestMembers: the names of JSON members are stable. testdata/members.txt has them; members may be
// added, with -update.
func TestMembers(t *testing.T) {
	h := newFixtureHandler(t, &fixture{upstream: 14, clients: 60, trouble: true})
	h.sampler.history = (&fixture{}).history()
	var d any
	if err := json.Unmarshal(ask(h, "GET", "/api/v1/status?connections=true").Body.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	// The names in these are no members.
	free := []string{".paused", ".calls", ".refused", ".statuses", ".fields", ".disconnects", ".history.upstreams", ".tenants[].waiting", ".waits"}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, v := range v {
				if slices.ContainsFunc(free, func(f string) bool { return strings.HasSuffix(path, f) }) {
					name = "*"
				}
				walk(path+"."+name, v)
			}
			return
		case []any:
			for _, v := range v {
				walk(path+"[]", v)
			}
		case nil:
			t.Errorf("%s is null", path)
		}
		names[strings.TrimPrefix(path, ".")] = true
	}
	walk("", d)
	var all []string
	for n := range names {
		all = append(all, n)
	}
	slices.Sort(all)
	got := strings.Join(all, "\n") + "\n"
	file := filepath.Join("testdata", "members.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(want)) {
		if !names[strings.TrimSpace(name)] {
			t.Errorf("the member %s is gone: programs of others may read it", strings.TrimSpace(name))
		}
	}
	if got != string(want) && !t.Failed() {
		t.Error("there are new members: go test ./internal/admin -run TestMembers -update")
	}
}

// TestOrdinaryClasses: the page counts as failed what status.Failure does.
func TestOrdinaryClasses(t *testing.T) {
	_, text, _ := strings.Cut(string(thePage.plain), "const ordinary = new Set([")
	text, _, _ = strings.Cut(text, "])")
	var classes []string
	if err := json.Unmarshal([]byte("["+text+"]"), &classes); err != nil || len(classes) == 0 {
		t.Fatalf("%q: %v", text, err)
	}
	for _, c := range []string{
		status.ClassOK, status.ClassEncrypted, status.ClassNoEnt, status.ClassExist, status.ClassLocked, status.ClassAccess, status.ClassStale, status.ClassDelay,
		status.ClassNoSpace, status.ClassIO, status.ClassInvalid, status.ClassNotSupp, status.ClassGrace, status.ClassState, status.ClassSession, status.ClassFault,
		status.ClassOther, status.ClassProgUnavail, status.ClassSystemErr, status.ClassAuthError, status.ClassMalformed,
	} {
		if slices.Contains(classes, c) == status.Failure(c) {
			t.Errorf("the page does not agree about %s", c)
		}
	}
}

func FuzzQuery(f *testing.F) {
	f.Add("clients=3&sort=bytes&filter=10.20&connections=true")
	f.Add("limit=all&limit=1")
	f.Add("%zz&;=\x00")
	f.Fuzz(func(t *testing.T, raw string) {
		for _, r := range resources {
			q, wrong := parseQuery(raw, r.params)
			if n := q.Most(); n < 1 || n > status.MostClients || len(q.Filter) > maxFilter {
				t.Errorf("%q: %+v", raw, q)
			}
			if wrong != "" && (len(wrong) > 1000 || !strings.HasSuffix(wrong, ".")) {
				t.Errorf("%q: %q", raw, wrong)
			}
		}
	})
}
