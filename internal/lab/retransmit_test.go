//go:build lab

package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An onceCall is a Call that the server must not execute twice: the second execution fails
// because the name exists already, or no longer. An EXCLUSIVE CREATE may be repeated; only
// the counters of the server show that.
type onceCall struct {
	name      string
	procedure int
	args      func() []byte // the arguments after the directory's file handle
}

var onceCalls = []onceCall{
	{"MKDIR", 9, func() []byte { return append(appendString(nil, "mkdir"), noAttributes...) }},
	{"CREATE GUARDED", 8, func() []byte { return append(testkit.AppendWords(appendString(nil, "guarded"), 1), noAttributes...) }},
	{"CREATE EXCLUSIVE", 8, func() []byte { return testkit.AppendWords(appendString(nil, "exclusive"), 2, 0x12345678, 0x9abcdef0) }},
	{"SYMLINK", 10, func() []byte {
		return appendString(append(appendString(nil, "symlink"), noAttributes...), "target")
	}},
	{"REMOVE", 12, func() []byte { return appendString(nil, "remove") }},
	{"RMDIR", 13, func() []byte { return appendString(nil, "rmdir") }},
	{"RENAME", 14, nil}, // the directory comes twice
	{"LINK", 15, nil},   // the file comes first
}

// noAttributes returns a sattr3 that sets no attribute. RFC 1813 Section 2.3.4.
var noAttributes = make([]byte, 6*4)

// message returns the Call for directory dir, which contains file and the names that prepare
// created.
func (o onceCall) message(dir, file []byte) []byte {
	xid := freshXID()
	switch o.name {
	case "RENAME":
		m := appendString(nfsCall(xid, uint32(o.procedure), dir), "before")
		return appendString(append(m, dir...), "after")
	case "LINK":
		return appendString(append(nfsCall(xid, uint32(o.procedure), file), dir...), "link")
	}
	return append(nfsCall(xid, uint32(o.procedure), dir), o.args()...)
}

const (
	prepareOnce = "mkdir -m 777 -p %[1]s && cd %[1]s && mkdir -m 777 rmdir && touch file remove before && chown 1000 . *"
	afterOnce   = "after exclusive file guarded link mkdir symlink"
)

// testRetransmit: a client repeats a Call that must not be executed twice. The server
// executes it once, and the client gets the Reply of that execution. The same is tried without
// a bridge over TCP for comparison: knfsd does as well behind a bridge to RDMA or TCP. And several
// processes of one host begin with one XID, each with and without a bridge a client of its own.
func testRetransmit(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	g.job(t, time.Minute, "rm -rf /export/retransmit")
	ways := []retransmitWay{{"server", farEnd{nfs: g.nfs, mount: g.mount}, nil}}
	if b != nil {
		tcp := newTCPBridge(t, g)
		tcp.start(t)
		defer tcp.stop(t)
		ways = append(ways, retransmitWay{"bridge", far, b}, retransmitWay{"bridge to TCP", farEnd{nfs: tcp.port, mount: tcp.port}, tcp})
	}
	for _, way := range ways {
		r := &retransmission{g: g, b: way.b, port: way.far.nfs, mount: way.far.mount}
		for _, c := range []struct {
			name string
			run  func(*testing.T, []byte)
			// How often the server gets each Call by itself and from the bridge. 0: not tried.
			server, bridge int
		}{
			{"together", r.together, 2, 1},
			{"answered", r.answered, 2, 2},
			// QEMU's network loses data sent on a connection that is closed while the guest
			// is stopped.
			{"reconnected", r.reconnected, 0, 1},
			// knfsd identifies a TCP client also by its port, as the bridge does. The client keeps it,
			// and QEMU's network passes it on.
			{"answered and reconnected", r.answeredAndReconnected, 2, 2},
			// The next process does not know the Call, gives it the same XID, and sends it
			// over TCP from the same port.
			{"answered and killed", r.answeredAndKilled, 0, 2},
		} {
			times := c.server
			if way.b != nil {
				times = c.bridge
			}
			if times == 0 {
				continue
			}
			t.Run(way.name+"/"+c.name, func(t *testing.T) {
				dir := "/export/retransmit/" + strings.ReplaceAll(way.name+"-"+c.name, " ", "-")
				r.check(t, way, dir, times, c.run)
			})
		}
		t.Run(way.name+"/processes of one host", func(t *testing.T) {
			r.processes(t, "/export/retransmit/"+strings.ReplaceAll(way.name, " ", "-"))
			way.b.wantQuiet(t)
		})
	}
	g.job(t, time.Minute, "rm -r /export/retransmit")
}

// check repeats every onceCall in dir with repeat. The server has to get each Call times
// times and to execute it once.
func (r *retransmission) check(t *testing.T, way retransmitWay, dir string, times int, repeat func(*testing.T, []byte)) {
	r.g.job(t, time.Minute, fmt.Sprintf(prepareOnce, dir))
	fh := mountRoot(t, r.mount, dir)
	file := dialRaw(t, r.port).lookup(t, fh, "file")
	before := r.g.executed(t)
	for _, o := range onceCalls {
		r.op, r.from = o, testkit.FreeAddr(t)
		t.Run(o.name, func(t *testing.T) { repeat(t, o.message(fh, file)) })
	}
	now, n := r.g.executed(t), len(onceCalls)
	if got := now.calls - before.calls; got != n*times {
		t.Errorf("the server got %d Calls of %d, want each %d times", got, n, times)
	}
	if got := now.executed - before.executed; got != n {
		t.Errorf("the server executed %d Calls of %d, want each once", got, n)
	}
	if got := strings.Join(strings.Fields(r.g.job(t, time.Minute, "ls "+dir)), " "); got != afterOnce {
		t.Errorf("in the directory there are now: %s; want %s", got, afterOnce)
	}
	way.b.wantQuiet(t)
}

// A retransmitWay is a way to the guest's server, through b or without a bridge.
type retransmitWay struct {
	name string
	far  farEnd
	b    *bridgeProcess
}

// newTCPBridge makes a bridge with several TCP connections to the guest's server. They are there from the
// start: none can be made while the guest stands still.
func newTCPBridge(t *testing.T, g *guest) *bridgeProcess {
	t.Helper()
	p := freePorts(t, 2)
	return newBridgeWith(t, p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:%d", transport: tcp, upstream: storage, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 4, idle: none}, timeouts: {probe: none}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%d"]}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[0], g.nfs, g.mount, p[1]))
}

// A retransmission is a way to a server and the Call that is repeated there.
type retransmission struct {
	g           *guest
	b           *bridgeProcess
	port, mount int
	op          onceCall
	from        string // where the client connects from, again and again
}

// dial connects from the client's port.
func (r *retransmission) dial(t *testing.T) *rawClient {
	t.Helper()
	return dialRawFrom(t, r.from, r.port)
}

const absorbed = `listener_calls_total{listener="nfs",result="absorbed"}`

// arrived waits until the bridge has read what c sent while the guest stands still: n Calls
// are at the server, and others, as many as more than before, were found to be the same again.
// Without a bridge the kernel of the guest's host has it.
func (r *retransmission) arrived(t *testing.T, c *rawClient, n int, before, more float64) {
	t.Helper()
	if r.b == nil {
		waitFor(t, 5*time.Second, "the Calls at the guest", func() bool { return testkit.Unacknowledged(c.Conn.(*net.TCPConn)) == 0 })
		return
	}
	waitFor(t, 5*time.Second, "the Calls at the bridge", func() bool {
		return r.b.metric(t, `upstream_credits_used{upstream="storage"}`) == float64(n) && r.b.metric(t, absorbed) == before+more
	})
}

func (r *retransmission) absorbed(t *testing.T) float64 {
	t.Helper()
	if r.b == nil {
		return 0
	}
	return r.b.metric(t, absorbed)
}

// together: twice on one connection before there can be an answer. One comes; knfsd may
// give another.
func (r *retransmission) together(t *testing.T, m []byte) {
	c := dialRaw(t, r.port)
	before := r.absorbed(t)
	r.g.standStill(t, func() {
		c.send(t, m, m)
		r.arrived(t, c, 1, before, 1)
	})
	first := c.receive(t)
	r.wantOK(t, first)
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	second, err := testkit.ReadRecord(c)
	switch {
	case err == nil && r.b != nil:
		t.Errorf("a second Reply: % x", second)
	case err == nil:
		r.wantSame(t, first, second)
	case err == io.EOF:
		t.Error("the connection has ended")
	}
}

// answered: again, on the same connection, after the answer.
func (r *retransmission) answered(t *testing.T, m []byte) {
	c := dialRaw(t, r.port)
	c.send(t, m)
	first := c.receive(t)
	r.wantOK(t, first)
	c.send(t, m)
	r.wantSame(t, first, c.receive(t))
}

// reconnected: the connection is closed before there can be an answer, and the Call sent
// again on the next one.
func (r *retransmission) reconnected(t *testing.T, m []byte) {
	c := r.dial(t)
	var next *rawClient
	before := r.absorbed(t)
	r.g.standStill(t, func() {
		c.send(t, m)
		r.arrived(t, c, 1, before, 0)
		c.Close()
		next = r.dial(t)
		next.send(t, m)
		r.arrived(t, next, 1, before, 1)
	})
	r.wantOK(t, next.receive(t))
}

// answeredAndReconnected: the answer has been on its way when the connection ended.
func (r *retransmission) answeredAndReconnected(t *testing.T, m []byte) {
	c := r.dial(t)
	c.send(t, m)
	first := c.receive(t)
	r.wantOK(t, first)
	c.Close()
	next := r.dial(t)
	next.send(t, m)
	r.wantSame(t, first, next.receive(t))
}

// answeredAndKilled: the bridge is killed after the answer, and another one is asked again.
func (r *retransmission) answeredAndKilled(t *testing.T, m []byte) {
	c := r.dial(t)
	c.send(t, m)
	first := c.receive(t)
	r.wantOK(t, first)
	c.Close()
	r.b.kill(t)
	r.b.start(t)
	next := r.dial(t)
	next.send(t, m)
	r.wantSame(t, first, next.receive(t))
}

// processes: three processes of one host, each with a port of its own, make a directory, remove it and make it again,
// under one XID. Then two make one at the same time, thirty times.
func (r *retransmission) processes(t *testing.T, dir string) {
	const first, exists = 2, 17
	r.g.job(t, time.Minute, fmt.Sprintf("mkdir -m 777 -p %[1]s && chown 1000 %[1]s", dir))
	fh := mountRoot(t, r.mount, dir)
	mkdir := func(name string) []byte {
		return append(appendString(nfsCall(first, 9, fh), name), noAttributes...)
	}
	for i, m := range [][]byte{mkdir("d"), appendString(nfsCall(first, 13, fh), "d"), mkdir("d")} {
		c := dialRaw(t, r.port)
		c.send(t, m)
		if s := binary.BigEndian.Uint32(result(t, c.receive(t))); s != 0 {
			t.Errorf("process %d: NFS error %d", i+1, s)
		}
		c.Close()
	}
	if got := strings.TrimSpace(r.g.job(t, time.Minute, "ls "+dir)); got != "d" {
		t.Errorf("in the directory there is: %q; want d", got)
	}
	for i := range 30 {
		m := mkdir(fmt.Sprint("at-once-", i))
		a, b := dialRaw(t, r.port), dialRaw(t, r.port)
		a.send(t, m)
		b.send(t, m)
		one, other := binary.BigEndian.Uint32(result(t, a.receive(t))), binary.BigEndian.Uint32(result(t, b.receive(t)))
		if min(one, other) != 0 || max(one, other) != exists {
			t.Errorf("two at once: statuses %d and %d, want 0 and %d", one, other, exists)
		}
		a.Close()
		b.Close()
	}
}

func (r *retransmission) wantOK(t *testing.T, reply []byte) {
	t.Helper()
	if s := binary.BigEndian.Uint32(result(t, reply)); s != 0 {
		t.Errorf("%s: NFS error %d", r.op.name, s)
	}
}

// wantSame wants the second Reply to be the first one again, from the server's memory.
func (r *retransmission) wantSame(t *testing.T, first, second []byte) {
	t.Helper()
	if !bytes.Equal(first, second) {
		t.Errorf("%s: not the same Reply again:\n% x\n% x", r.op.name, first, second)
	}
}

// onceCounts are the server's: of the procedures of onceCalls, and of its duplicate request
// cache, in which only they and others that change something look.
type onceCounts struct{ calls, executed int }

func (g *guest) executed(t *testing.T) (n onceCounts) {
	t.Helper()
	number := func(s string) int {
		v, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for line := range strings.Lines(g.job(t, time.Minute, "cat /proc/net/rpc/nfsd")) {
		switch f := strings.Fields(line); f[0] {
		case "rc": // hits, misses, and what is not looked for
			n.executed = number(f[2])
		case "proc3": // how many follow, and they
			for _, p := range []int{8, 9, 10, 12, 13, 14, 15} {
				n.calls += number(f[2+p])
			}
		}
	}
	return n
}
