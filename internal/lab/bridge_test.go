//go:build lab

package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A bridgeProcess is `rdmabridge serve` in front of a guest. A nil one stands for no
// bridge: it logs nothing and need not be stopped.
type bridgeProcess struct {
	owner          *testing.T // the process ends with this test, even if another test started it again
	binary, config string
	port, admin    int
	socket         string // of commands; "" if the configuration does not have it
	process        *process
	started        time.Time
	read           int // octets of the log that wantQuiet and wantNoErrors have read
}

func startBridge(t *testing.T, g *guest) *bridgeProcess {
	t.Helper()
	b := newBridgeProcess(t, g)
	b.noProbes(t)
	b.start(t)
	return b
}

// configure replaces the configuration of a bridge that has not started.
func (b *bridgeProcess) configure(t *testing.T, before, after string) {
	t.Helper()
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), before) {
		t.Fatalf("%q is not in\n%s", before, text)
	}
	if err := os.WriteFile(b.config, []byte(strings.ReplaceAll(string(text), before, after)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// noProbes disables probes, for tests that count the Calls at the server.
func (b *bridgeProcess) noProbes(t *testing.T) {
	t.Helper()
	const pool = "    pool: {connections: 4, credits: 128, mode: auto}\n"
	b.configure(t, pool, pool+"    timeouts: {probe: none}\n")
}

func newBridgeProcess(t *testing.T, g *guest) *bridgeProcess {
	t.Helper()
	p := freePorts(t, 2)
	port, admin := p[0], p[1]
	socket := filepath.Join(t.TempDir(), "c.sock")
	b := newBridgeWith(t, port, admin, fmt.Sprintf(`
listeners:
  - name: nfs
    address: 127.0.0.1:%d
    transport: tcp
    upstream: storage
    routes:
      - {program: mount, upstream: storage-tcp}
      - {program: nlm, upstream: lockd}
upstreams:
  - name: storage
    transport: rdma
    provider: iwarp
    endpoints: ["127.0.0.1:%d"]
    pool: {connections: 4, credits: 128, mode: auto}
  - name: storage-tcp
    transport: tcp
    endpoints: ["127.0.0.1:%d"]
  - name: lockd
    transport: tcp
    endpoints: ["127.0.0.1:%d"]
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
control: {path: %q}
log: {level: info, format: json}
`, port, g.rdma, g.mount, g.lockd, admin, socket))
	b.socket = socket
	return b
}

// newBridgeWith makes a bridge with a configuration in which port is the port of a listener
// and admin that of the admin server. Without another word in text, the bridge has no control socket: several bridges
// at once would complain of one path.
func newBridgeWith(t *testing.T, port, admin int, text string) *bridgeProcess {
	t.Helper()
	return newBridgeOf(t, bridgeBinary(t), port, admin, text)
}

// newBridgeOf is newBridgeWith for another program, such as one with the provider ibverbs.
func newBridgeOf(t *testing.T, binary string, port, admin int, text string) *bridgeProcess {
	t.Helper()
	if !strings.Contains(text, "\ncontrol:") {
		text += "control: {path: none}\n"
	}
	b := &bridgeProcess{owner: t, binary: binary, config: filepath.Join(t.TempDir(), "rdmabridge.yaml"), port: port, admin: admin}
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, 10*time.Second, b.binary, "check", "-c", b.config)
	return b
}

// launch starts a process of the bridge.
func (b *bridgeProcess) launch(args ...string) {
	b.process = start(b.owner, b.binary, append([]string{"serve", "-c", b.config}, args...)...)
	b.started = time.Now()
	b.read = 0
	log := b.process
	b.owner.Cleanup(func() {
		if b.owner.Failed() {
			b.owner.Logf("the bridge's log:\n%s", tail(log.output(), 60))
		}
	})
}

// handOver has another process take over from the bridge's, and waits until that has ended. The file has handover.path.
func (b *bridgeProcess) handOver(t *testing.T) {
	t.Helper()
	old := b.process
	b.launch("--takeover")
	waitFor(t, patience, "the end of the process that hands over", func() bool { return !old.alive() || !b.process.alive() })
	if old.alive() || old.err != nil {
		t.Fatalf("hand-over: %v\n%s", old.err, b.process.output())
	}
}

func (b *bridgeProcess) start(t *testing.T) {
	t.Helper()
	b.launch()
	waitFor(t, 30*time.Second, "the bridge", func() bool {
		if !b.process.alive() {
			t.Fatalf("the bridge ended:\n%s", b.process.output())
		}
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", b.admin))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
}

// metric returns the sum of the series whose names begin with rdmabridge_ and prefix.
func (b *bridgeProcess) metric(t *testing.T, prefix string) float64 {
	t.Helper()
	sum, found := b.series(t, prefix)
	if !found {
		t.Errorf("no metric rdmabridge_%s", prefix)
	}
	return sum
}

// series is metric where there may be no such series yet.
func (b *bridgeProcess) series(t *testing.T, prefix string) (sum float64, found bool) {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", b.admin))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "rdmabridge_"+prefix); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " ")+1:]), 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			sum += v
			found = true
		}
	}
	return sum, found
}

// waitCalls waits until n Calls more have come to the listeners whose names begin with listener. A client that has lost
// its connection may take most of a minute to connect again.
func (b *bridgeProcess) waitCalls(t *testing.T, listener string, n float64) {
	t.Helper()
	calls := func() float64 {
		sum, _ := b.series(t, fmt.Sprintf(`listener_received_calls_total{listener="%s`, listener))
		return sum
	}
	before := calls()
	waitFor(t, 3*time.Minute, fmt.Sprintf("%.0f Calls more", n), func() bool { return calls() >= before+n })
}

// shapes counts Calls to the server over RDMA by how they and their Replies travelled.
type shapes struct {
	readChunks, writeChunks float64 // data of a WRITE or READ apart from their message
	longCalls, replyChunks  float64 // messages whole, but not in a Send
	inline                  float64 // both messages in Sends
}

func (b *bridgeProcess) shapes(t *testing.T) (s shapes) {
	t.Helper()
	if b == nil {
		return s
	}
	n := func(call, reply string) float64 {
		return b.metric(t, fmt.Sprintf("upstream_rdma_calls_total{call=%q,reply=%q", call, reply))
	}
	for _, reply := range []string{"inline", "write_chunk", "reply_chunk"} {
		s.readChunks += n("read_chunk", reply)
		s.longCalls += n("long", reply)
	}
	for _, call := range []string{"inline", "read_chunk", "long"} {
		s.writeChunks += n(call, "write_chunk")
		s.replyChunks += n(call, "reply_chunk")
	}
	s.inline = n("inline", "inline")
	return s
}

func (s shapes) since(before shapes) shapes {
	return shapes{
		s.readChunks - before.readChunks, s.writeChunks - before.writeChunks,
		s.longCalls - before.longCalls, s.replyChunks - before.replyChunks,
		s.inline - before.inline,
	}
}

// reverse counts the Calls of the server to clients and their outcomes.
type reverse struct{ calls, replies, refused, unanswered float64 }

func (b *bridgeProcess) reverse(t *testing.T) reverse {
	t.Helper()
	if b == nil {
		return reverse{}
	}
	return reverse{
		calls: b.metric(t, "upstream_reverse_calls_total{"), replies: b.metric(t, "upstream_reverse_replies_total{"),
		refused: b.metric(t, "upstream_reverse_refused_calls_total{"), unanswered: b.metric(t, "upstream_reverse_unanswered_calls_total{"),
	}
}

// wantReverse fails unless the server made at least n Calls to clients since before and each
// was answered.
func (b *bridgeProcess) wantReverse(t *testing.T, before reverse, n float64) {
	t.Helper()
	if b == nil {
		return
	}
	var r reverse
	testkit.Settles(10*time.Second, func() bool { // one may be on its way
		r = b.reverse(t)
		return r.replies-before.replies == r.calls-before.calls
	})
	calls, replies := r.calls-before.calls, r.replies-before.replies
	t.Logf("%.0f reverse Calls, %.0f Replies", calls, replies)
	if calls < n || replies != calls || r.refused != before.refused || r.unanswered != before.unanswered {
		t.Errorf("reverse Calls: %+v before, %+v now, want %.0f or more and all answered", before, r, n)
	}
}

// wantNoSessions fails if the bridge remembers NFSv4.1 sessions of upstream although nothing is mounted. With
// krb5p it may: it does not see that a server no longer knows a session, and forgets it minutes later.
func (b *bridgeProcess) wantNoSessions(t *testing.T, upstream string) {
	t.Helper()
	if b == nil {
		return
	}
	var n float64
	if !testkit.Settles(10*time.Second, func() bool { // a Reply may be on its way
		n = b.metric(t, fmt.Sprintf("upstream_sessions{upstream=%q}", upstream))
		return n == 0
	}) {
		t.Errorf("the bridge remembers %.0f sessions of %s though nothing is mounted", n, upstream)
	}
}

// news returns the log lines since the last call whose level is one of levels.
func (b *bridgeProcess) news(t *testing.T, levels ...string) []string {
	t.Helper()
	log := b.process.output()
	text := string(log[b.read:])
	b.read = len(log)
	var found []string
	for line := range strings.Lines(text) {
		var entry struct{ Level, Message string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("the bridge wrote what is not a log line: %s", line)
			continue
		}
		for _, l := range levels {
			if entry.Level == l {
				found = append(found, line)
			}
		}
	}
	return found
}

// serverIdle is for how long a connection is idle before knfsd and lockd close it.
const serverIdle = 6 * time.Minute

// wantQuiet fails if the bridge has logged a warning or an error. It ignores that the server
// closed connections if they may have been idle for long enough, on a busy host.
func (b *bridgeProcess) wantQuiet(t *testing.T) {
	t.Helper()
	if b == nil {
		return
	}
	lines := b.news(t, "warn", "error", "fatal", "panic")
	if time.Since(b.started) > serverIdle {
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return strings.Contains(line, `"message":"no connection to upstream"`) && strings.Contains(line, `EOF"`)
		})
	}
	if len(lines) > 0 {
		t.Errorf("the bridge complained:\n%s", strings.Join(lines, ""))
	}
}

// wantNoErrors fails if the bridge has logged an error. The loss of an upstream is a
// warning.
func (b *bridgeProcess) wantNoErrors(t *testing.T) {
	t.Helper()
	if b == nil {
		return
	}
	if lines := b.news(t, "error", "fatal", "panic"); len(lines) > 0 {
		t.Errorf("the bridge failed:\n%s", strings.Join(lines, ""))
	}
}

// startCapture runs capture, and returns when it has begun. stop ends it as Ctrl-C does, and returns what it said.
func (b *bridgeProcess) startCapture(t *testing.T, args ...string) (stop func() string) {
	t.Helper()
	p := start(t, b.binary, append([]string{"capture", "--socket", b.socket}, args...)...)
	waitFor(t, 30*time.Second, "the capture", func() bool { return bytes.Contains(p.output(), []byte("capturing")) || !p.alive() })
	return func() string {
		t.Helper()
		p.end(t, syscall.SIGINT)
		if p.err != nil {
			t.Fatalf("capture: %v\n%s", p.err, p.output())
		}
		return string(p.output())
	}
}

// kill kills the bridge without a drain.
func (b *bridgeProcess) kill(t *testing.T) {
	t.Helper()
	b.process.end(t, syscall.SIGKILL)
}

// stop drains the bridge. It takes no time because no client is left.
func (b *bridgeProcess) stop(t *testing.T) {
	t.Helper()
	if b == nil {
		return
	}
	b.process.end(t, syscall.SIGTERM)
	if err := b.process.err; err != nil {
		t.Errorf("the bridge ended with %v", err)
	}
}
