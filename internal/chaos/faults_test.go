package chaos

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// An outcome is the end of a Call as its client sees it.
type outcome string

const (
	answered  outcome = "answered"
	systemErr outcome = "SYSTEM_ERR"
	closed    outcome = "closed"
)

// A row is one of docs/faults.md: one fault, one Call, and its traces in the log and the
// metrics.
type row struct {
	name    string // as in the document
	over    string // upstream: rdma or tcp
	fault   fault
	safe    kind    // a Call that may be repeated
	repeat  outcome // of it
	harm    kind    // one that may not
	once    outcome // of it
	log     string  // a line of the bridge's; "" for none
	metrics []string
	granted float64 // credits in force afterwards, 0 not to be checked
}

const (
	inLimbo   = `upstream_replays_total`
	lost      = `upstream_calls_total{outcome="lost"`
	errored   = `upstream_calls_total{outcome="error"`
	abandoned = "call cannot be answered; client connection closed"

	refusedReply = "reply refused; its call failed"
)

var rows = []row{
	{"Responder drops a Call", "rdma", lostCall, read, answered, mkdir, closed, "call not answered in time; connection closed", []string{`upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
	{"Reply under another XID", "rdma", wrongXID, read, answered, mkdir, closed, "call not answered in time; connection closed", []string{`upstream_rdma_dropped_messages_total{reason="stray"`, `upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
	{"Reply that answers nothing", "rdma", strayReply, read, answered, mkdir, answered, "", []string{`upstream_rdma_dropped_messages_total{reason="stray"`}, 0},
	{"Reply sent twice", "rdma", twiceReply, getattr, answered, mkdir, answered, "", []string{`upstream_rdma_dropped_messages_total{reason="stray"`}, 0},
	{"Transport header and payload with different XIDs", "rdma", twoXIDs, read, systemErr, mkdir, systemErr, refusedReply, []string{`upstream_rdma_refused_replies_total{reason="payload"`, errored}, 0},
	{"Transport header cut short", "rdma", badHeader, read, answered, mkdir, closed, "call not answered in time; connection closed", []string{`upstream_rdma_dropped_messages_total{reason="header"`, `upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
	{"Grant of 0", "rdma", grantZero, read, answered, mkdir, answered, "", []string{`upstream_credits_granted`}, 1},
	{"Grant of 1", "rdma", grantOne, read, answered, mkdir, answered, "", []string{`upstream_credits_granted`}, 1},
	{"Grant of 100,000", "rdma", grantHuge, read, answered, mkdir, answered, "", []string{`upstream_credits_granted`}, 128},
	{"Chunk longer than offered", "rdma", longChunk, read, systemErr, echo, systemErr, refusedReply, []string{`upstream_rdma_refused_replies_total{reason="chunks"`, errored}, 0},
	{"Chunk shorter than what belongs in it", "rdma", shortChunk, read, systemErr, echo, systemErr, refusedReply, []string{`upstream_rdma_refused_replies_total{reason="payload"`, errored}, 0},
	{"Chunk that was not written as the Reply says", "rdma", unwritten, read, systemErr, echo, systemErr, refusedReply, []string{`upstream_rdma_refused_replies_total{reason="unwritten"`, errored}, 0},
	{"Chunk longer than offered, in the Reply to a Call under RPCSEC_GSS", "rdma", longChunk, read, systemErr, echoGSS, closed, abandoned, []string{`upstream_rdma_refused_replies_total{reason="chunks"`, errored}, 0},
	{"ERR_CHUNK", "rdma", errChunk, read, answered, mkdir, systemErr, "", []string{`upstream_rdma_errors_total{code="err_chunk"`, errored}, 0},
	{"ERR_VERS", "rdma", errVers, read, answered, mkdir, systemErr, "", []string{`upstream_rdma_errors_total{code="err_vers"`, errored}, 0},
	{"ERR_CHUNK to a Call under RPCSEC_GSS", "rdma", errChunk, getattr, answered, echoGSS, closed, abandoned, []string{`upstream_rdma_errors_total{code="err_chunk"`, errored}, 0},
	{"Another handle invalidated", "rdma", alienHandle, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Reply longer than a Receive", "rdma", longMessage, read, answered, mkdir, systemErr, "reply longer than the inline threshold; connection closed", []string{`upstream_rdma_refused_replies_total{reason="too_long"`, `upstream_disconnects_total`, errored}, 0},
	{"RDMA Write beyond the chunk", "rdma", overWrite, read, systemErr, echo, systemErr, "invalid access to the memory of a call; connection closed", []string{`upstream_rdma_refused_replies_total{reason="access"`, `upstream_disconnects_total`, errored}, 0},
	{"RDMA Write after the Reply", "rdma", lateWrite, read, answered, echo, answered, "no connection to upstream", []string{`upstream_disconnects_total`}, 0},
	{"RDMA Read after the Reply", "rdma", lateRead, write, answered, write, answered, "no connection to upstream", []string{`upstream_disconnects_total`}, 0},
	{"Responder closes the connection", "rdma", hangUp, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Connection reset inside an FPDU", "rdma", resetWire, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Connection closed inside an FPDU", "rdma", finWire, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Connection half-closed", "rdma", halfClose, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Network stalls for a moment", "rdma", stallWire, read, answered, mkdir, answered, "", nil, 0},
	{"Network loses everything from now on", "rdma", blackhole, read, answered, mkdir, closed, "call not answered in time; connection closed", []string{`upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
	{"Octet corrupted on the way", "rdma", corruptWire, read, answered, mkdir, closed, "connection ended", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"TCP server drops a Call", "tcp", lostCall, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
	{"TCP server's Reply under another XID", "tcp", wrongXID, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_stray_replies_total`, inLimbo, lost}, 0},
	{"TCP server's Reply sent twice", "tcp", twiceReply, read, answered, mkdir, answered, "", []string{`upstream_stray_replies_total`}, 0},
	{"TCP server's Reply longer than any may be: `chunks.reply` and 64 KiB", "tcp", longRecord, read, systemErr, mkdir, systemErr, refusedReply, []string{`upstream_tcp_refused_replies_total{reason="too_long"`, errored}, 0},
	{"TCP server's Reply of an XID alone", "tcp", shortRecord, read, systemErr, mkdir, systemErr, refusedReply, []string{`upstream_tcp_refused_replies_total{reason="too_short"`, errored}, 0},
	{"TCP server's message that is neither a Call nor a Reply", "tcp", badReply, read, systemErr, mkdir, systemErr, refusedReply, []string{`upstream_tcp_refused_replies_total{reason="malformed"`, errored}, 0},
	{"TCP server's connection cut inside a record", "tcp", cutRecord, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"TCP server closes the connection", "tcp", hangUp, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"TCP server's connection reset", "tcp", resetWire, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total`, inLimbo, lost}, 0},
	{"Network to a TCP server loses everything from now on", "tcp", blackhole, read, answered, mkdir, closed, "no connection to upstream", []string{`upstream_disconnects_total{reason="deadline"`, inLimbo, lost}, 0},
}

// document is docs/faults.md.
func document(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// TestFaults injects each fault once and compares its traces with docs/faults.md.
func TestFaults(t *testing.T) {
	doc := document(t)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			r.check(t)
			written(t, doc, r.name, []outcome{r.repeat, r.once}, r.log, r.metrics)
		})
	}
}

// written checks that the document has the row with that name, with all that it
// has to say.
func written(t *testing.T, doc, name string, seen []outcome, log string, metrics []string) {
	t.Helper()
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "| "+name+" |") {
			continue
		}
		for _, want := range append([]string{log}, metrics...) {
			if !strings.Contains(strings.ReplaceAll(line, "\\", ""), want) {
				t.Errorf("docs/faults.md, %q: does not say %q", name, want)
			}
		}
		cells := strings.Split(line, " | ")
		for i, want := range seen {
			if len(cells) < i+2 || !strings.Contains(cells[i+1], string(want)) {
				t.Errorf("docs/faults.md, %q: does not say %q in column %d", name, want, i+2)
			}
		}
		return
	}
	t.Errorf("docs/faults.md has no row %q", name)
}

func (r *row) check(t *testing.T) {
	w := newWorld(t, 1, budget)
	w.callTimeout = 15 * time.Second
	switch r.fault {
	case lostCall, wrongXID, badHeader, blackhole: // nothing else ends these
		w.callTimeout = 700 * time.Millisecond
	}
	s := newServer(w.book, true)
	up := settings.UpstreamOptions{Name: "up", Connections: 1}
	if r.over == "rdma" {
		up.RDMA, up.Provider, up.Endpoints = true, w.iwarp, []string{w.overRDMA("up", s)}
	} else {
		up.Endpoints = []string{w.overTCP("up", s)}
	}
	for _, re := range w.responders {
		re.slow = true
	}
	w.start([]settings.ListenerOptions{{Name: "in", Address: "127.0.0.1:0", Upstream: "up"}}, []settings.UpstreamOptions{up})
	g := &rogue{name: "client", book: w.book, counts: &w.counts, addr: w.proxy.Addr("in"), local: net.IPv4(127, 0, 3, 1), dice: w.seed.dice("row", 0), xid: 100}
	before := w.series()
	ends := slices.ContainsFunc(r.metrics, func(m string) bool { return strings.HasPrefix(m, "upstream_disconnects_total") })
	for _, step := range []struct {
		k    kind
		want outcome
	}{{r.safe, r.repeat}, {r.harm, r.once}} {
		if got := w.probe(g, getattr, nil); got != answered { // the connection is well, and has credits
			t.Fatalf("before the fault: %v", got)
		}
		ended := w.sum("rdmabridge_upstream_disconnects_total")
		if got := w.probe(g, step.k, []fault{r.fault}); got != step.want {
			t.Errorf("%v: the client saw %v, want %v", step.k, got, step.want)
		}
		if !testkit.Settles(patience, func() bool { return w.counts[r.fault].Swap(0) == 1 }) {
			t.Errorf("%v: the fault was not injected", step.k)
		}
		// A fault that comes after the Reply shows later than the Reply.
		if ends && !testkit.Settles(patience, func() bool { return w.sum("rdmabridge_upstream_disconnects_total") > ended }) {
			t.Errorf("%v: the connection does not end", step.k)
		}
		if !testkit.Settles(patience, func() bool { return w.proxy.Ready() == nil }) {
			t.Error("the upstream does not come back")
		}
	}
	if n := w.sum("rdmabridge_upstream_credits_granted"); r.granted > 0 && n != r.granted {
		t.Errorf("%v credits are in force, want %v", n, r.granted)
	}
	metrics := r.metrics
	if r.granted > 0 {
		metrics = nil // the gauge may be where it was
	}
	w.shows(before, r.log, metrics)
	w.rest()
	w.close()
}

// shows checks the log and which metrics have moved.
func (w *world) shows(before map[string]float64, log string, metrics []string) {
	w.t.Helper()
	var moved []string
	still := func(m string) bool {
		return !slices.ContainsFunc(moved, func(s string) bool { return matches(s, m) })
	}
	testkit.Settles(5*time.Second, func() bool {
		moved = w.moved(before)
		return (log == "" || w.logs.count(log) > 0) && !slices.ContainsFunc(metrics, still)
	})
	for _, m := range metrics {
		if still(m) {
			w.t.Errorf("%s did not move; what did: %s", m, strings.Join(moved, " "))
		}
	}
	if log != "" && w.logs.count(log) == 0 {
		w.t.Errorf("the log does not say %q, but: %s", log, &w.logs)
	}
	if os.Getenv("CHAOS_SHOW") != "" {
		w.t.Logf("log %s; moved %s", &w.logs, strings.Join(moved, " "))
	}
}

// matches reports whether series s is named by m: a name, and perhaps a label.
func matches(s, m string) bool {
	name, label, _ := strings.Cut(m, "{")
	return (s == name || strings.HasPrefix(s, name+"{")) && strings.Contains(s, strings.TrimSuffix(label, "}"))
}

// probe makes one Call while the faults given wait to strike.
func (w *world) probe(g *rogue, k kind, fs []fault) outcome {
	conn, err := g.dial()
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	o := g.call(k, 20000)
	w.book.transmit(o.id)
	for _, f := range fs {
		for _, s := range w.skies {
			s.pending[f].Store(1)
		}
	}
	l, _ := dialTCP(context.Background(), g.addr, g.local)
	defer l.close()
	if err := l.send(o.m, bound); err != nil {
		return outcome(err.Error())
	}
	select {
	case m := <-l.replies():
		w.book.end(o.id, 0)
		switch {
		case bytes.Equal(m, replyTo(o.m)):
			return answered
		case isError(m):
			return systemErr
		}
		return outcome(fmt.Sprintf("wrong octets: %x", m[:min(len(m), 64)]))
	case <-l.ended():
		return closed
	case <-time.After(bound):
		return "nothing"
	}
}

// series are all counters and gauges of the bridge.
func (w *world) series() map[string]float64 {
	rec := httptest.NewRecorder()
	w.h.Metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	all := make(map[string]float64)
	for line := range strings.Lines(rec.Body.String()) {
		i := strings.LastIndexByte(line, ' ')
		if line[0] == '#' || i < 0 {
			continue
		}
		all[strings.TrimPrefix(line[:i], "rdmabridge_")], _ = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
	}
	return all
}

// moved returns the series that have changed, but for those that move with
// every Call.
func (w *world) moved(before map[string]float64) (names []string) {
	after := w.series()
	for _, n := range slices.Sorted(maps.Keys(after)) {
		name, _, _ := strings.Cut(n, "{")
		if after[n] != before[n] && !strings.Contains(name, "octets") && !strings.Contains(name, "seconds") && !strings.Contains(name, "bytes") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			names = append(names, n)
		}
	}
	return names
}

func (l *logBook) count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[msg]
}
