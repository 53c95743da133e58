package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// An echoServer answers every RPC Call over TCP at once. The result is a name.
type echoServer struct {
	*proxytest.TCPServer
	addr   string
	primes atomic.Int64 // NULL Calls with AUTH_NONE, by which bridges prime connections
}

func startEchoServer(t *testing.T, name string) *echoServer {
	t.Helper()
	s := &echoServer{}
	l, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Flavor == oncrpc.FlavorNone {
			s.primes.Add(1)
		}
		return append(oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), name...), true
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	s.TCPServer, s.addr = l, l.Addr()
	return s
}

// A caller makes one Call after the other, and connects again when it loses its
// connection. It may lose the connection between Calls, but not before a Reply.
type caller struct {
	addr      string
	program   uint32
	calls     atomic.Int64
	reconnect atomic.Int64
	from      sync.Map // names of the servers that have answered
	stop      chan struct{}
	done      chan error
}

func startCaller(t *testing.T, addr string, program uint32) *caller {
	t.Helper()
	c := &caller{addr: addr, program: program, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { c.done <- c.run() }()
	return c
}

func (c *caller) run() error {
	for first := true; ; first = false {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return err
		}
		if !first {
			c.reconnect.Add(1)
		}
		ended, err := c.use(conn)
		conn.Close()
		if err != nil || ended {
			return err
		}
	}
}

// use makes Calls until the connection or the caller ends.
func (c *caller) use(conn net.Conn) (ended bool, err error) {
	for {
		select {
		case <-c.stop:
			return true, nil
		default:
		}
		xid := uint32(c.calls.Load()) + 1
		conn.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := conn.Write(testkit.Record(userCall(xid, c.program, 3))); err != nil {
			return false, nil // the bridge has read nothing of the Call
		}
		m, err := testkit.ReadRecord(conn)
		switch {
		case err == io.EOF, err != nil && strings.Contains(err.Error(), "connection reset"):
			// The bridge closed the connection while the Call was on its way. It must not have
			// forwarded the Call; TestHandover counts.
			return false, nil
		case err != nil:
			return false, fmt.Errorf("call %d: %w", xid, err)
		case len(m) < 4 || binary.BigEndian.Uint32(m) != xid:
			return false, fmt.Errorf("call %d: reply %x", xid, m)
		}
		if len(m) == 28 {
			c.from.Store(string(m[24:]), true)
		}
		c.calls.Add(1)
	}
}

// userCall is a NULL Call with AUTH_SYS.
func userCall(xid, program, version uint32) []byte {
	// RFC 5531 Section 9: XID, CALL, RPC version, program, version, procedure; AUTH_SYS with
	// stamp, no name, uid, gid and no other gids; AUTH_NONE.
	return testkit.Words(xid, oncrpc.TypeCall, 2, program, version, 0, uint32(oncrpc.FlavorSys), 20, 0, 0, 1, 1, 0, 0, 0)
}

// end stops the caller and reports its error.
func (c *caller) end(t *testing.T) {
	t.Helper()
	close(c.stop)
	select {
	case err := <-c.done:
		if err != nil {
			t.Errorf("caller: %v", err)
		}
	case <-time.After(testkit.Patience):
		t.Error("the caller does not end")
	}
}

// progress waits until each of callers has had more than 20 further Calls answered.
func progress(t *testing.T, callers ...*caller) {
	t.Helper()
	for _, c := range callers {
		n := c.calls.Load()
		testkit.Eventually(t, "more Calls are answered", func() bool { return c.calls.Load() > n+20 })
	}
}

// endWithoutReconnect stops callers, none of which may have lost its connection.
func endWithoutReconnect(t *testing.T, callers ...*caller) {
	t.Helper()
	for _, c := range callers {
		c.end(t)
		if n := c.reconnect.Load(); n != 0 {
			t.Errorf("a client had to connect %d times again", n)
		}
	}
}

// A reloadCase is a bridge that runs on a file.
type reloadCase struct {
	t       *testing.T
	path    string
	b       *bridge
	log     *testkit.Log
	signals chan os.Signal
	ended   chan error
}

func startReload(t *testing.T, text string) *reloadCase {
	t.Helper()
	x := &reloadCase{
		t: t, path: filepath.Join(t.TempDir(), "rdmabridge.yaml"), log: new(testkit.Log),
		signals: make(chan os.Signal, 2), ended: make(chan error, 1),
	}
	x.write(text)
	hash, watched := hashFiles([]string{x.path}), newWatcher(x.path)
	c, err := configs.LoadFile(x.path, known)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan *bridge, 1)
	sink := logsink.New(x.log, translate.Log(c.Log))
	s := service{
		config: c, log: sink.Logger(), signals: x.signals, files: []string{x.path}, hash: hash, watcher: watched, sink: sink,
		started: func(b *bridge) error { started <- b; return nil },
	}
	go func() { x.ended <- s.run() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", x.log)
		}
	})
	select {
	case x.b = <-started:
	case err := <-x.ended:
		t.Fatalf("serve: %v", err)
	}
	return x
}

// write replaces the file in one step.
func (x *reloadCase) write(text string) {
	x.t.Helper()
	write(x.t, x.path+".new", text)
	must(x.t, os.Rename(x.path+".new", x.path))
}

// oneUpstream is a configuration with one listener, nfs, and one upstream, s.
func oneUpstream(s *echoServer) string {
	return fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: 127.0.0.1:0}
reload: {watch: none}
`, s.addr)
}

// reload writes text, sends SIGHUP, and waits until the log says want.
func (x *reloadCase) reload(text, want string) {
	x.t.Helper()
	n := len(x.log.String())
	x.write(text)
	x.signals <- syscall.SIGHUP
	testkit.Eventually(x.t, "the log says "+want, func() bool { return strings.Contains(x.log.String()[n:], want) })
}

func (x *reloadCase) stop() {
	x.t.Helper()
	x.signals <- syscall.SIGTERM
	select {
	case err := <-x.ended:
		if err != nil {
			x.t.Errorf("serve: %v", err)
		}
	case <-time.After(testkit.Patience):
		x.t.Fatal("serve does not end")
	}
	if n := x.b.arena.Outstanding(); n != 0 {
		x.t.Errorf("%d leases outstanding at the end", n)
	}
}

// has reports whether /metrics has line.
func (x *reloadCase) has(line string) bool {
	x.t.Helper()
	_, body := get(x.t, "http://"+x.b.admin.Addr()+"/metrics")
	return strings.Contains("\n"+body, "\n"+line+"\n")
}

// metric checks that /metrics has line.
func (x *reloadCase) metric(line string) {
	x.t.Helper()
	if !x.has(line) {
		x.t.Errorf("/metrics lacks %s", line)
	}
}

const (
	loaded  = `"message":"configuration reloaded"`
	refused = `"message":"configuration rejected; the previous one stays in force"`
)

// TestReloadUnderLoad: clients call during every kind of change. They lose no Call, and
// no connection except to the listener that is removed.
func TestReloadUnderLoad(t *testing.T) {
	one, two := startEchoServer(t, "one!"), startEchoServer(t, "two!")
	base := fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: one, routes: [{program: mount, upstream: one}]}
  - {name: goes, address: 127.0.0.2:0, upstream: one}
upstreams:
  - {name: one, transport: tcp, endpoints: [%q], pool: {connections: 3, credits: 4}}
admin: {address: 127.0.0.1:0}
loops: 2
reload: {watch: none}
`, one.addr)
	x := startReload(t, base)
	nfs, mount := startCaller(t, x.b.proxy.Addr("nfs"), 100003), startCaller(t, x.b.proxy.Addr("nfs"), 100005)
	goes := startCaller(t, x.b.proxy.Addr("goes"), 100003)
	goesAddr := x.b.proxy.Addr("goes")
	progress(t, nfs, mount)

	// Add the other server and send MOUNT there.
	second := strings.Replace(base, "admin:", fmt.Sprintf("  - {name: two, transport: tcp, endpoints: [%q]}\nadmin:", two.addr), 1)
	second = strings.Replace(second, "{program: mount, upstream: one}", "{program: mount, upstream: two}", 1)
	x.reload(second, loaded)
	testkit.Eventually(t, "MOUNT goes to the other server", func() bool { _, ok := mount.from.Load("two!"); return ok })
	progress(t, nfs, mount)
	if _, ok := nfs.from.Load("two!"); ok {
		t.Error("NFS went to the other server, too")
	}

	// Change the number of connections, the credits and the endpoint.
	third := strings.Replace(second, fmt.Sprintf("endpoints: [%q], pool: {connections: 3, credits: 4}", one.addr),
		fmt.Sprintf("endpoints: [%q], pool: {connections: 2, credits: 8}", two.addr), 1)
	x.reload(third, loaded)
	testkit.Eventually(t, "NFS goes to the other server", func() bool { _, ok := nfs.from.Load("two!"); return ok })
	testkit.Eventually(t, "the connections to the first are closed", func() bool { return len(one.Conns()) == 0 })
	progress(t, nfs, mount)

	// Remove a listener and an upstream.
	close(goes.stop)
	fourth := strings.Replace(third, "  - {name: goes, address: 127.0.0.2:0, upstream: one}\n", "", 1)
	fourth = strings.Replace(fourth, "{program: mount, upstream: two}", "{program: mount, upstream: one}", 1)
	fourth = fourth[:strings.Index(fourth, "  - {name: two")] + fourth[strings.Index(fourth, "admin:"):]
	x.reload(fourth, loaded)
	if c, err := net.Dial("tcp", goesAddr); err == nil {
		c.Close()
		t.Error("the listener that was removed listens")
	}
	testkit.Eventually(t, "the upstream is gone", func() bool { return strings.Contains(x.log.String(), `"message":"upstream removed"`) })
	progress(t, nfs, mount)

	// Go back to the first configuration.
	x.reload(base, loaded)
	progress(t, nfs, mount)
	endWithoutReconnect(t, nfs, mount)
	x.metric(`rdmabridge_config_reloads_total{result="applied"} 4`)
	x.metric(`rdmabridge_config_reloads_total{result="refused"} 0`)
	x.metric(`rdmabridge_config_restart_needed 0`)
	x.metric(`rdmabridge_listener_calls_total{listener="nfs",result="abandoned"} 0`)
	x.stop()
}

// TestReloadRDMA: RDMA connections are replaced while clients call, also connections of
// the bridge to itself.
func TestReloadRDMA(t *testing.T) {
	s := startEchoServer(t, "one!")
	rdma := testkit.FreeAddr(t)
	base := fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: self}
  - {name: rdma, address: %q, transport: rdma, upstream: one}
upstreams:
  - {name: self, transport: rdma, endpoints: [%q], pool: {idle: none, connections: 2, credits: 16}}
  - {name: one, transport: tcp, endpoints: [%q]}
admin: {address: 127.0.0.1:0}
loops: 2
reload: {watch: none}
`, rdma, rdma, s.addr)
	x := startReload(t, base)
	var callers []*caller
	for range 4 {
		callers = append(callers, startCaller(t, x.b.proxy.Addr("nfs"), 100003))
	}
	progress(t, callers...)
	connects := func() int {
		t.Helper()
		_, body := get(t, "http://"+x.b.admin.Addr()+"/metrics")
		_, rest, _ := strings.Cut(body, "rdmabridge_upstream_connects_total{upstream=\"self\"} ")
		n := 0
		fmt.Sscan(rest, &n)
		return n
	}
	testkit.Eventually(t, "both connections are up", func() bool { return connects() == 2 })
	for _, change := range []struct {
		from, to string
		most     int // connections made if each is replaced once
	}{
		{"credits: 16", "credits: 9", 2},
		{"credits: 16}", "credits: 16}, inline: {call: 8KiB, reply: 8KiB}", 2},
		{"credits: 16}", "credits: 16}, iwarp: {crc: off, fpdu: max}", 2},
		{"connections: 2", "connections: 4", 4}, // with a CRC again
		{"connections: 2", "connections: 1", 0},
		{"transport: rdma, upstream: one", "transport: rdma, upstream: one, credits: 3", 1},
	} {
		n := connects()
		x.reload(strings.Replace(base, change.from, change.to, 1), loaded)
		testkit.Eventually(t, "the upstream has changed to "+change.to, func() bool { return connects() >= n+change.most })
		progress(t, callers...)
		if got := connects() - n; got > change.most {
			t.Errorf("%s: %d connections were made, want %d", change.to, got, change.most)
		}
	}
	endWithoutReconnect(t, callers...)
	if n, calls := s.Calls.Load(), sum(callers); n < calls {
		t.Errorf("%d Calls at the server, %d answered", n, calls)
	}
	x.metric(`rdmabridge_listener_calls_total{listener="nfs",result="abandoned"} 0`)
	x.metric(`rdmabridge_upstream_replays_total{upstream="self"} 0`)
	x.stop()
}

// TestReloadRemovedUnderWay: Calls are answered although their upstream or their listener
// is removed meanwhile.
func TestReloadRemovedUnderWay(t *testing.T) {
	slow, s := startSlowServer(t), startEchoServer(t, "one!")
	base := fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: slow}, {name: goes, address: 127.0.0.2:0, upstream: slow}]
upstreams: [{name: slow, transport: tcp, endpoints: [%q], pool: {connections: 2, credits: 1}, timeouts: {probe: none}}, {name: one, transport: tcp, endpoints: [%q]}]
admin: {address: 127.0.0.1:0}
reload: {watch: none}
`, slow.addr, s.addr)
	x := startReload(t, base)
	stays, goes := callSlow(t, x.b.proxy.Addr("nfs"), slow), callSlow(t, x.b.proxy.Addr("goes"), slow)
	queued, err := net.Dial("tcp", x.b.proxy.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer queued.Close()
	queued.SetDeadline(time.Now().Add(testkit.Patience))
	queued.Write(testkit.Record(nullCall(7, 100003, 3)))
	testkit.Eventually(t, "a Call waits for a credit", func() bool { return x.b.proxy.Status(status.Query{}).Upstreams[1].Credits.Waiting == 1 })

	x.reload(oneUpstream(s), loaded)
	x.metric(`rdmabridge_listener_clients{listener="goes"} 1`)
	slow.answer <- struct{}{}
	select {
	case <-slow.got:
	case <-time.After(testkit.Patience):
		t.Fatal("the Call that waited does not arrive")
	}
	if strings.Contains(x.log.String(), `"message":"upstream removed"`) {
		t.Error("the upstream is gone with Calls under way")
	}
	for range 2 {
		slow.answer <- struct{}{}
	}
	for what, c := range map[string]net.Conn{"stays": stays, "goes": goes, "queued": queued} {
		if m, err := testkit.ReadRecord(c); err != nil || binary.BigEndian.Uint32(m) != 7 {
			t.Errorf("%s: %x, %v; want its Reply", what, m, err)
		}
	}
	if _, err := goes.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client of the listener that goes: %v, want EOF after its Reply", err)
	}
	goes.Close()
	testkit.Eventually(t, "the upstream is gone", func() bool { return strings.Contains(x.log.String(), `"message":"upstream removed"`) })
	stays.Write(testkit.Record(nullCall(8, 100003, 3)))
	if m, err := testkit.ReadRecord(stays); err != nil || len(m) != 28 || string(m[24:]) != "one!" {
		t.Errorf("after that: %x, %v; want an answer of the other server", m, err)
	}
	stays.Close()
	queued.Close()
	x.stop()
}

// TestReloadFirstRDMA adds the first listener and upstream on RDMA, and removes the last.
func TestReloadFirstRDMA(t *testing.T) {
	s := startEchoServer(t, "one!")
	rdma := testkit.FreeAddr(t)
	base := oneUpstream(s)
	x := startReload(t, base)
	c := startCaller(t, x.b.proxy.Addr("nfs"), 100003)
	testkit.Eventually(t, "a Call is answered", func() bool { return c.calls.Load() > 0 })
	listener := fmt.Sprintf(", {name: rdma, address: %q, transport: rdma, upstream: one}]\nupstreams: [", rdma)
	listens := strings.Replace(base, "]\nupstreams: [", listener, 1)
	with := strings.Replace(listens, "upstream: one}", "upstream: self}", 1)
	with = strings.Replace(with, "upstreams: [", fmt.Sprintf("upstreams: [{name: self, transport: rdma, endpoints: [%q], pool: {idle: none}}, ", rdma), 1)
	for round := 1; round <= 2; round++ {
		// The upstream is removed before the listener that it is connected to: a Call that
		// reached the listener while that drains would have to wait for another server.
		for _, config := range []string{with, listens, base} {
			x.reload(config, loaded)
			progress(t, c)
			switch config {
			case with:
				testkit.Eventually(t, "the listener has the upstream's 4 connections", func() bool {
					_, body := get(t, "http://"+x.b.admin.Addr()+"/metrics")
					return strings.Contains(body, "rdmabridge_listener_clients{listener=\"rdma\"} 4\n")
				})
			case listens:
				testkit.Eventually(t, "the upstream is removed", func() bool {
					return strings.Count(x.log.String(), "upstream removed") == round
				})
			}
		}
	}
	endWithoutReconnect(t, c)
	x.stop()
}

func sum(callers []*caller) (n int64) {
	for _, c := range callers {
		n += c.calls.Load()
	}
	return n
}

// TestReloadListener: changed settings of a listener apply to clients that are connected.
func TestReloadListener(t *testing.T) {
	s := startSlowServer(t)
	base := strings.Replace(slowConfig(s, "1m"), "upstream: server}", "upstream: server, limits: {calls: 8}}", 1) + "reload: {watch: none}\n"
	x := startReload(t, base)
	c := callSlow(t, x.b.proxy.Addr("nfs"), s)

	// No other client may connect now, and this client has as many Calls as it may have.
	x.reload(strings.Replace(base, "calls: 8}", "calls: 1}, allow: [192.0.2.1]", 1)+"log: {level: debug}\n", loaded)
	if got := x.log.String(); !strings.Contains(got, `"setting":"listeners[nfs].limits.calls","old":"8","new":"1"`) ||
		!strings.Contains(got, `"setting":"listeners[nfs].allow","old":"","new":"[192.0.2.1/32]"`) {
		t.Error("the log does not have the difference")
	}
	// The bridge may close the connection before Dial returns.
	if other, err := net.Dial("tcp", x.b.proxy.Addr("nfs")); err == nil {
		other.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := other.Read(make([]byte, 1)); err == nil {
			t.Error("a client that is not allowed gets an answer")
		}
		other.Close()
	}
	// The bridge reads one more Call before it applies the new limit.
	const two = `rdmabridge_listener_received_calls_total{listener="nfs"} 2`
	c.Write(testkit.Record(nullCall(8, 100003, 3)))
	testkit.Eventually(t, "the metrics say "+two, func() bool { return x.has(two) })
	for xid := uint32(9); xid < 11; xid++ {
		c.Write(testkit.Record(nullCall(xid, 100003, 3)))
	}
	testkit.Eventually(t, "the bridge's kernel has the Calls", func() bool { return testkit.Unacknowledged(c.(*net.TCPConn)) == 0 })
	for xid := range uint32(4) {
		s.answer <- struct{}{}
		if m, err := testkit.ReadRecord(c); err != nil || binary.BigEndian.Uint32(m) != 7+xid {
			t.Errorf("Reply %d: %x, %v", xid, m, err)
		}
		// The connection has been served since the Calls arrived, and has as many Calls as it may have.
		if xid == 0 {
			x.metric(two)
		}
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	testkit.Eventually(t, "the log has debug lines", func() bool { return strings.Contains(x.log.String(), `"level":"debug"`) })
	x.stop()
}

// TestReloadRefused: a file with a problem or an address in use changes nothing.
func TestReloadRefused(t *testing.T) {
	s := startEchoServer(t, "one!")
	taken := startEchoServer(t, "two!")
	base := oneUpstream(s) + "log: {level: warn}\nmemory: {budget: 1GiB}\n"
	x := startReload(t, base)
	c := startCaller(t, x.b.proxy.Addr("nfs"), 100003)
	for i, text := range []string{
		"listeners: [",
		strings.Replace(base, "level: warn", "level: loud", 1),
		strings.Replace(base, "upstream: one}", "upstream: one, allow: [192.0.2.1]}\n", 1) + "foo: 1\n",
		strings.Replace(base, "upstream: one}]", fmt.Sprintf("upstream: one, allow: [192.0.2.1]}, {name: other, address: %q, upstream: one}]", taken.addr), 1),
		// This file is valid with its own budget but not with the budget in force.
		strings.NewReplacer("upstreams: [", `upstreams: [{name: big, transport: rdma, endpoints: ["127.0.0.1:1"], pool: {connections: 64, credits: 1024}}, `, "1GiB", "16GiB").Replace(base),
	} {
		x.reload(text, refused)
		x.metric(fmt.Sprintf(`rdmabridge_config_reloads_total{result="refused"} %d`, i+1))
	}
	for _, want := range []string{
		"rdmabridge.yaml:6: log.level: \\\"loud\\\" is not possible here; write debug, info, warn or error", ": foo: unknown setting",
		"address already in use", "memory.budget: 1GiB is too little",
	} {
		if !strings.Contains(x.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	if d := configs.Diff(x.b.config, mustConfig(t, base)); len(d) != 0 {
		t.Errorf("refused files changed %v", d)
	}
	progress(t, c)
	d := startCaller(t, x.b.proxy.Addr("nfs"), 100003)
	testkit.Eventually(t, "another client has Calls answered", func() bool { return d.calls.Load() > 0 })
	c.end(t)
	d.end(t)
	x.stop()
}

func mustConfig(t *testing.T, text string) *configs.Config {
	t.Helper()
	c, err := configs.Load([]byte(text), known)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestReloadRestartNeeded: the log names the settings that need a restart, and the others
// are applied.
func TestReloadRestartNeeded(t *testing.T) {
	s := startEchoServer(t, "one!")
	base := fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: one}, {name: r, address: 127.0.0.1:0, transport: rdma, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: 127.0.0.1:0}
memory: {budget: 1GiB}
reload: {watch: none}
loops: 2
`, s.addr)
	x := startReload(t, base)
	changed := strings.NewReplacer("budget: 1GiB", "budget: 2GiB", "transport: rdma,", "transport: rdma, iwarp: {crc: off}, credits: 9,", "loops: 2", "loops: 3").Replace(base)
	x.reload(changed+"chunks: {io: 2MiB}\ndrain: {timeout: 7s}\n", loaded)
	for _, want := range []string{
		`"setting":"memory.budget","old":"1GiB","new":"2GiB","message":"setting needs a restart"`,
		`"setting":"loops","old":"2","new":"3","message":"setting needs a restart"`,
		`"setting":"chunks.io","old":"4MiB","new":"2MiB","message":"setting needs a restart"`,
		`"setting":"listeners[r].iwarp.crc","old":"on","new":"off","message":"setting needs a restart"`,
		`"setting":"listeners[r].credits","old":"64","new":"9","message":"setting changed"`,
		`"setting":"drain.timeout","old":"30s","new":"7s","message":"setting changed"`,
	} {
		if !hasLine(x.log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	x.metric("rdmabridge_config_restart_needed 1")
	if got := time.Duration(x.b.drainIn.Load()); got != 7*time.Second {
		t.Errorf("drain.timeout is %v", got)
	}
	x.reload(base, loaded)
	x.metric("rdmabridge_config_restart_needed 0")
	x.stop()
}

// hasLine reports whether a line of log has all fields of want.
func hasLine(log, want string) bool {
	for line := range strings.SplitSeq(log, "\n") {
		all := true
		for f := range strings.SplitSeq(want, `,"`) {
			all = all && strings.Contains(line, strings.TrimPrefix(f, `"`))
		}
		if all {
			return true
		}
	}
	return false
}

// TestReloadSameAddress: a listener with another name or transport takes over the socket
// of the listener at the same address. No client is refused.
func TestReloadSameAddress(t *testing.T) {
	s := startEchoServer(t, "one!")
	addr := testkit.FreeAddr(t)
	base := fmt.Sprintf(`
listeners: [{name: before, address: %q, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: 127.0.0.1:0}
reload: {watch: none}
`, addr, s.addr)
	x := startReload(t, base)
	c := startCaller(t, addr, 100003)
	renamed := strings.Replace(base, "before", "after", 1)
	for i := range 6 {
		progress(t, c)
		x.reload([]string{renamed, base}[i%2], loaded)
	}
	c.end(t)
	x.stop()
}

// TestReloadWatched: a change of the file is loaded without a signal, and only once.
func TestReloadWatched(t *testing.T) {
	t.Parallel()
	s := startEchoServer(t, "one!")
	base := strings.Replace(oneUpstream(s), "watch: none", "watch: 20ms", 1)
	x := startReload(t, base)
	x.write(base + "drain: {timeout: \n")
	testkit.Eventually(t, "the file is rejected", func() bool { return strings.Contains(x.log.String(), refused) })
	x.write(strings.Replace(base, "20ms", "none", 1))
	testkit.Eventually(t, "the file is loaded", func() bool { return strings.Contains(x.log.String(), loaded) })
	// After this reload the watcher has stopped looking. The next change is loaded by the
	// signal, and makes the watcher look again.
	const same = `"message":"configuration reloaded: no setting to change"`
	x.signals <- syscall.SIGHUP
	testkit.Eventually(t, "the file is loaded without a change", func() bool { return strings.Contains(x.log.String(), same) })
	x.reload(base+"drain: {timeout: 7s}\n", loaded)
	x.metric(`rdmabridge_config_reloads_total{result="applied"} 2`)
	x.metric(`rdmabridge_config_reloads_total{result="refused"} 1`)
	x.metric(`rdmabridge_config_reloads_total{result="unchanged"} 1`)
	n := len(x.log.String())
	x.write(base + "drain: {timeout: 8s}\n")
	testkit.Eventually(t, "the watcher looks", func() bool { return strings.Contains(x.log.String()[n:], loaded) })
	x.metric(`rdmabridge_config_reloads_total{result="unchanged"} 1`)
	x.stop()
}

// TestReloaderChanged: the watcher may report a version that a signal has loaded already, or that was rejected. It is
// not loaded again.
func TestReloaderChanged(t *testing.T) {
	t.Parallel()
	s := startEchoServer(t, "one!")
	base := oneUpstream(s)
	c, err := configs.Load([]byte(base), known)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rdmabridge.yaml")
	write(t, path, base)
	steps := func(b *bridge) error {
		r := newReloader(b, []string{path}, logsink.New(io.Discard, translate.Log(c.Log)), hashFiles([]string{path}))
		signal := func() { r.reload(reloadSignal) }
		for _, step := range []struct {
			name, text                  string
			do                          func()
			applied, refused, unchanged uint64
		}{
			{"nothing happened", base, r.changed, 0, 0, 0},
			{"a signal", base + "drain: {timeout: 7s}\n", signal, 1, 0, 0},
			{"the watcher sees the same", base + "drain: {timeout: 7s}\n", r.changed, 1, 0, 0},
			{"a broken file", base + "drain: {timeout: \n", r.changed, 1, 1, 0},
			{"it is seen again", base + "drain: {timeout: \n", r.changed, 1, 1, 0},
			{"as it was before", base + "drain: {timeout: 7s}\n", r.changed, 1, 1, 1},
			{"the watcher sees another", base + "drain: {timeout: 8s}\n", r.changed, 2, 1, 1},
		} {
			write(t, path, step.text)
			step.do()
			if a, f, u := r.applied.Value(), r.refused.Value(), r.unchanged.Value(); a != step.applied || f != step.refused || u != step.unchanged {
				t.Errorf("%s: %d applied, %d refused, %d unchanged; want %d, %d, %d", step.name, a, f, u, step.applied, step.refused, step.unchanged)
			}
		}
		return nil
	}
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM // behind the steps
	if err := serve(c, zerolog.Nop(), signals, steps); err != nil {
		t.Error(err)
	}
}
