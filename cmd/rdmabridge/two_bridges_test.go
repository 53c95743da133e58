package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// Two bridges back to back: TCP client, bridge, RDMA, another bridge, TCP server. Another
// client sends the same Calls without a bridge to a server in the same state. Both clients
// have to receive the same octets, but for what FSINFO says of READs and WRITEs.
const frontBridge = `
listeners:
  - {name: front, address: "127.0.0.1:0", transport: tcp, upstream: middle}
upstreams:
  - {name: middle, transport: rdma, endpoints: [%q], pool: {mode: pinned}}
tenants:
  - {name: local, clients: [127.0.0.0/8], total: {calls: 10000, memory: 128MiB}}
memory: {budget: 256MiB}
admin: {address: none}
`

const rearBridge = `
listeners:
  - name: middle
    address: "127.0.0.1:0"
    transport: rdma
    upstream: rest
    routes:
      - {program: nfs, versions: [3], upstream: nfs}
      - {program: mount, upstream: nfs}
upstreams:
  - {name: nfs, transport: tcp, endpoints: [%q]}
  - {name: rest, transport: tcp, endpoints: [%q], pool: {mode: pinned, connections: 2}}
memory: {budget: 256MiB}
admin: {address: none}
`

// A twin has every server twice, one of each behind the bridges. The clock of the servers
// is now.
type twin struct {
	t      *testing.T
	now    atomic.Int64
	direct map[uint32]*proxytest.Client // by program, for NFSv3 and MOUNT; 0: for all others
	across []*proxytest.Client          // through the bridges
	front  *bridge
	rear   *bridge
	rest   *proxytest.TCPServer // behind the bridges, for programs other than NFSv3
	calls  int
	octets int
	done   map[uint32]int // NFSv3 Calls that succeeded, by procedure

	mu     sync.Mutex                  // guards pinned
	pinned map[*proxytest.TCPConn]bool // connections of rest that have brought NFSv4.2
}

func (x *twin) clock() time.Time { return time.Unix(1_700_000_000+x.now.Load(), 123456789) }

// nfsServer starts an NFS server whose Replies are the same as those of another one.
func (x *twin) nfsServer() string {
	return startDemoNFS(x.t, demo.Options{Clock: x.clock, Seed: 0x7072697661746531})
}

func (x *twin) restServer(b proxytest.Behaviour) *proxytest.TCPServer {
	s, err := proxytest.ListenTCP("127.0.0.1:0", b)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(s.Close)
	return s
}

// noteConn notes the connections of x.rest that the rear bridge has pinned for a client.
func (x *twin) noteConn(c *oncrpc.Call, from *proxytest.TCPConn) (reply []byte, taken bool) {
	args := c.Message[c.Args:]
	if c.Program == oncrpc.ProgramNFS && c.Version == 4 && len(args) >= 8 && binary.BigEndian.Uint32(args[4:]) == 2 {
		x.mu.Lock()
		x.pinned[from] = true
		x.mu.Unlock()
	}
	return nil, false
}

func (x *twin) client(addr string) *proxytest.Client {
	c, err := proxytest.DialClient(addr)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (x *twin) bridge(text string) *bridge {
	b, signals, wait := startServe(x.t, text)
	x.t.Cleanup(func() {
		signals <- syscall.SIGTERM
		if err := wait(); err != nil {
			x.t.Errorf("a bridge ended with %v", err)
		}
	})
	return b
}

func newTwin(t *testing.T) *twin {
	x := &twin{t: t, done: make(map[uint32]int), pinned: make(map[*proxytest.TCPConn]bool)}
	server := x.client(x.nfsServer())
	x.direct = map[uint32]*proxytest.Client{oncrpc.ProgramNFS: server, oncrpc.ProgramMount: server, 0: x.client(x.restServer(proxytest.Behaviour{}).Addr())}
	x.rest = x.restServer(proxytest.Behaviour{InterceptTCP: x.noteConn})
	x.rear = x.bridge(fmt.Sprintf(rearBridge, x.nfsServer(), x.rest.Addr()))
	x.front = x.bridge(fmt.Sprintf(frontBridge, x.rear.proxy.Addr("middle")))
	for _, b := range []*bridge{x.rear, x.front} {
		if err := b.waitReady(testkit.Patience); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		x.across = append(x.across, x.client(x.front.proxy.Addr("front")))
	}
	return x
}

// A twinStep is one Call.
type twinStep struct {
	call []byte
	then func(results []byte) // called with the results of the Reply; may be nil
}

// run sends all of steps at once, directly and through the bridges, and compares the
// Replies.
func (x *twin) run(steps ...twinStep) {
	x.t.Helper()
	var pairs []twinReplies
	for _, s := range steps {
		pairs = append(pairs, x.send(s))
	}
	for i, p := range pairs {
		reply := x.compare(steps[i].call, p)
		x.octets += len(steps[i].call) + len(reply)
		if len(reply) < 28 || binary.BigEndian.Uint32(reply[8:]) != 0 || binary.BigEndian.Uint32(reply[20:]) != 0 {
			continue
		}
		var h oncrpc.Call
		if oncrpc.ParseCall(steps[i].call, &h) == nil && h.Program == oncrpc.ProgramNFS && h.Version == 3 && binary.BigEndian.Uint32(reply[24:]) == 0 {
			x.done[h.Procedure]++
		}
		if f := steps[i].then; f != nil {
			f(reply[24:])
		}
	}
}

// twinReplies receive the Replies to one Call.
type twinReplies struct{ direct, across <-chan []byte }

// send sends the Call of s directly and through the bridges.
func (x *twin) send(s twinStep) twinReplies {
	x.t.Helper()
	program, version := binary.BigEndian.Uint32(s.call[12:]), binary.BigEndian.Uint32(s.call[16:])
	d := x.direct[program]
	if d == nil || program == oncrpc.ProgramNFS && version != 3 {
		d = x.direct[0]
	}
	var p twinReplies
	var err error
	if p.direct, err = d.Go(s.call); err != nil {
		x.t.Fatal(err)
	}
	if p.across, err = x.across[x.calls%len(x.across)].Go(s.call); err != nil {
		x.t.Fatal(err)
	}
	x.calls++
	return p
}

// lowered changes the Reply to call as bridges with the defaults do: the server, whose FSINFO says so, takes and
// returns more at once than they carry.
func lowered(call, reply []byte) {
	reg := translate.Registry(&configs.Config{Chunks: configs.Chunks{IO: configs.DefaultIO}})
	var h oncrpc.Call
	if oncrpc.ParseCall(call, &h) != nil {
		return
	}
	var a ulb.Analysis
	if b, ok := reg.Analyse(&h, &a).(ulb.Lowerer); ok && a.Lower&ulb.Results != 0 {
		p := reg.Path(int(4*configs.MiB + 64*configs.KiB))
		b.LowerResults(h.Procedure, reply, &p)
	}
}

// compare waits for both Replies to call and returns them if they are the same.
func (x *twin) compare(call []byte, p twinReplies) []byte {
	x.t.Helper()
	want, ok := <-p.direct
	if !ok {
		x.t.Fatalf("call %d, %x: the server closed the connection", x.calls, prefix(call))
	}
	lowered(call, want)
	select {
	case got, ok := <-p.across:
		if !ok || !bytes.Equal(got, want) {
			x.t.Fatalf("call %x of %d octets was answered through the bridges (%t)\n%x\nand without\n%x",
				prefix(call), len(call), ok, prefix(got), prefix(want))
		}
	case <-time.After(testkit.Patience):
		x.t.Fatalf("call %x of %d octets was not answered", prefix(call), len(call))
	}
	return want
}

func prefix(b []byte) []byte { return b[:min(len(b), 200)] }

// A file is a file, directory or link that the workload has created.
type file struct {
	handle []byte
	dir    int // in dirs
	name   string
	size   int
}

// A workload generates Calls, most of which succeed.
type workload struct {
	r     *rand.Rand
	xid   uint32
	dirs  []file
	files []file
	links []file
}

func pack(words ...any) (b []byte) {
	for _, w := range words {
		switch w := w.(type) {
		case int:
			b = binary.BigEndian.AppendUint32(b, uint32(w))
		case uint64:
			b = binary.BigEndian.AppendUint64(b, w)
		case string:
			b = append(b, pack([]byte(w))...)
		case []byte:
			b = binary.BigEndian.AppendUint32(b, uint32(len(w)))
			b = append(append(b, w...), make([]byte, -len(w)&3)...)
		default:
			panic(w)
		}
	}
	return b
}

func (w *workload) call(program, version, procedure uint32, args ...any) []byte {
	w.xid++
	return append(proxytest.CallHeader(nil, w.xid, program, version, procedure), pack(args...)...)
}

func (w *workload) nfs(procedure uint32, args ...any) twinStep {
	return twinStep{call: w.call(oncrpc.ProgramNFS, 3, procedure, args...)}
}

// size returns a size from 0 to 1 MiB. Small ones are most frequent; odd ones are as
// frequent as even ones.
func (w *workload) size() int {
	switch w.r.IntN(16) {
	case 0:
		return w.r.IntN(1<<20 + 1)
	case 1:
		return []int{0, 1, 1023, 1024, 4095, 4096, 65535, 65536, 65537, 1 << 20}[w.r.IntN(10)]
	}
	return w.r.IntN(1 << (1 + w.r.IntN(17)))
}

func (w *workload) name() string {
	b := make([]byte, 1+w.r.IntN(40))
	for i := range b {
		b[i] = byte('a' + w.r.IntN(26))
	}
	return string(b)
}

func (w *workload) any(fs []file) *file { return &fs[w.r.IntN(len(fs))] }

// found adds f to where. results has its handle after the status, as a post_op_fh3.
func found(where *[]file, f file) func([]byte) {
	return func(results []byte) {
		if binary.BigEndian.Uint32(results) != 0 || len(results) < 12 || binary.BigEndian.Uint32(results[4:]) != 1 {
			return
		}
		n := binary.BigEndian.Uint32(results[8:])
		f.handle = bytes.Clone(results[12 : 12+n])
		*where = append(*where, f)
	}
}

// sattr returns a sattr3 with a mode, and with size unless that is negative.
func sattr(mode, size int) []any {
	a := []any{1, mode, 0, 0}
	if size < 0 {
		a = append(a, 0)
	} else {
		a = append(a, 1, uint64(size))
	}
	return append(a, 0, 0)
}

// change returns a Call that changes something.
func (w *workload) change() twinStep {
	d := w.r.IntN(len(w.dirs))
	dir := &w.dirs[d]
	name := w.name()
	with := func(args []any, more ...any) []any { return append(args, more...) }
	switch n := w.r.IntN(100); {
	case n < 45 && len(w.files) > 0: // WRITE
		f, size := w.any(w.files), w.size()
		at := w.r.IntN(f.size + 1)
		data := make([]byte, size)
		testkit.FillPattern(data, w.xid)
		s := w.nfs(7, f.handle, uint64(at), size, w.r.IntN(3), data)
		s.then = func(results []byte) {
			if binary.BigEndian.Uint32(results) == 0 {
				f.size = max(f.size, at+size)
			}
		}
		return s
	case n < 65 || len(w.files) < 4: // CREATE
		s := w.nfs(8, with([]any{dir.handle, name, w.r.IntN(2)}, sattr(0o644, -1)...)...)
		s.then = found(&w.files, file{dir: d, name: name})
		return s
	case n < 70: // MKDIR
		s := w.nfs(9, with([]any{dir.handle, name}, sattr(0o755, -1)...)...)
		s.then = found(&w.dirs, file{dir: d, name: name})
		return s
	case n < 75: // SYMLINK
		s := w.nfs(10, with([]any{dir.handle, name}, append(sattr(0o777, -1), w.name()+"/"+w.name())...)...)
		s.then = found(&w.links, file{dir: d, name: name})
		return s
	case n < 82: // REMOVE; its handle stays, and is stale
		f := w.any(w.files)
		return w.nfs(12, w.dirs[f.dir].handle, f.name)
	case n < 84: // RMDIR, of one that may not be empty
		f := w.any(w.dirs)
		return w.nfs(13, w.dirs[f.dir].handle, f.name)
	case n < 90: // RENAME
		f := w.any(w.files)
		return w.nfs(14, w.dirs[f.dir].handle, f.name, dir.handle, name)
	case n < 92: // LINK
		return w.nfs(15, w.any(w.files).handle, dir.handle, name)
	case n < 98: // SETATTR
		f := w.any(w.files)
		size := -1
		if w.r.IntN(2) == 0 {
			size = w.size()
			f.size = min(f.size, size)
		}
		return w.nfs(2, with([]any{f.handle}, append(sattr(w.r.IntN(0o1000), size), 0)...)...)
	default: // COMMIT
		return w.nfs(21, w.any(w.files).handle, uint64(0), 0)
	}
}

// mount returns a Call of MOUNT: NULL, EXPORT or MNT.
func (w *workload) mount() twinStep {
	switch w.r.IntN(4) {
	case 0:
		return twinStep{call: w.call(oncrpc.ProgramMount, 3, 0)}
	case 1:
		return twinStep{call: w.call(oncrpc.ProgramMount, 3, 5)}
	case 2:
		return twinStep{call: w.call(oncrpc.ProgramMount, 3, 1, "/"+w.name())}
	}
	return twinStep{call: w.call(oncrpc.ProgramMount, 3, 1, "/")}
}

// look returns a Call that changes nothing.
func (w *workload) look() twinStep {
	dir, f := w.any(w.dirs), w.any(w.files)
	switch w.r.IntN(24) {
	case 0:
		return w.nfs(0)
	case 1, 2, 3:
		return w.nfs(1, f.handle) // GETATTR
	case 4:
		return w.nfs(1, dir.handle)
	case 5:
		return w.nfs(3, w.dirs[f.dir].handle, f.name) // LOOKUP
	case 6:
		return w.nfs(3, dir.handle, w.name())
	case 7:
		return w.nfs(4, f.handle, 0x3f) // ACCESS
	case 8:
		if len(w.links) > 0 {
			return w.nfs(5, w.any(w.links).handle) // READLINK
		}
		return w.nfs(5, f.handle)
	case 9, 10, 11, 12, 13, 14: // READ, beyond the end too
		return w.nfs(6, f.handle, uint64(w.r.IntN(f.size+100)), w.size())
	case 15:
		return w.nfs(16, dir.handle, uint64(0), uint64(0), 512+w.r.IntN(32<<10)) // READDIR
	case 16:
		return w.nfs(17, dir.handle, uint64(0), uint64(0), 512+w.r.IntN(8<<10), 4096+w.r.IntN(64<<10)) // READDIRPLUS
	case 17:
		return w.nfs(uint32(18+w.r.IntN(3)), dir.handle) // FSSTAT, FSINFO, PATHCONF
	case 18:
		return w.mount()
	case 19:
		w.xid++
		return twinStep{call: proxytest.CompoundCall(w.xid, 0, pack(24), pack(9, 1, 1<<12))} // NFSv4.0: PUTROOTFH, GETATTR
	case 20:
		w.xid++
		return twinStep{call: proxytest.SequenceCall(w.xid)} // NFSv4.2
	case 21:
		w.xid++
		return twinStep{call: proxytest.EchoCall(w.xid, w.size(), w.size(), 0)} // an unknown program
	case 22:
		w.xid++
		m := proxytest.EchoCall(w.xid, w.size()/8, w.size()/8, 0)
		return twinStep{call: proxytest.GSSCall(m, w.xid, uint32(1+w.r.IntN(2)))}
	}
	w.xid++
	return twinStep{call: proxytest.GSSCall(proxytest.SequenceCall(w.xid), w.xid, 1)}
}

// TestTwoBridges: the Replies to 10,000 Calls through two bridges are the same as without
// bridges.
func TestTwoBridges(t *testing.T) {
	calls := 10_000
	switch {
	case testing.Short():
		calls = 1000
	case testkit.RaceEnabled:
		calls = 4000
	}
	x := newTwin(t)
	w := &workload{r: rand.New(rand.NewPCG(5, 8167)), xid: 0x1000}
	x.run(twinStep{call: w.call(oncrpc.ProgramMount, 3, 1, "/"), then: func(results []byte) {
		n := binary.BigEndian.Uint32(results[4:])
		w.dirs = append(w.dirs, file{handle: bytes.Clone(results[8 : 8+n])})
	}})
	if len(w.dirs) == 0 {
		t.Fatal("not mounted")
	}
	for len(w.files) < 4 {
		x.run(w.change())
	}
	began := time.Now()
	for x.calls < calls {
		x.now.Add(1)
		x.run(w.change()) // alone: what is under way at the same time has no order
		var looks []twinStep
		for range 1 + w.r.IntN(12) {
			looks = append(looks, w.look())
		}
		x.run(looks...)
	}
	t.Logf("%d calls, %d MiB, %d files, %d directories in %v", x.calls, x.octets>>20, len(w.files), len(w.dirs), time.Since(began))
	t.Logf("succeeded, by procedure: %v", x.done)
	for _, procedure := range []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 17, 18, 19, 20, 21} {
		if x.done[procedure] < 3 && !testing.Short() {
			t.Errorf("procedure %d succeeded %d times: this tests little", procedure, x.done[procedure])
		}
	}
	// The bridges used all shapes of messages.
	for b, want := range map[*bridge][]string{
		x.front: {
			`upstream_rdma_calls_total{call="inline",reply="write_chunk",upstream="middle"}`, `upstream_rdma_calls_total{call="inline",reply="reply_chunk",upstream="middle"}`,
			`upstream_rdma_calls_total{call="read_chunk",reply="inline",upstream="middle"}`, `upstream_rdma_calls_total{call="long",reply="reply_chunk",upstream="middle"}`,
		},
		x.rear: {
			`listener_rdma_calls_total{call="inline",listener="middle"}`, `listener_rdma_calls_total{call="pulled",listener="middle"}`,
			`listener_rdma_replies_total{listener="middle",reply="inline"}`, `listener_rdma_replies_total{listener="middle",reply="write_chunk"}`,
			`listener_rdma_replies_total{listener="middle",reply="reply_chunk"}`,
		},
	} {
		r := httptest.NewRecorder()
		b.metrics.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
		for _, name := range want {
			if n := series(r.Body.String(), "rdmabridge_"+name); n == "" || n == "0" {
				t.Errorf("%s is %q", name, n)
			}
		}
	}
	// Both ends of the RDMA connections count the same octets.
	text := func(b *bridge) string {
		r := httptest.NewRecorder()
		b.metrics.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
		return r.Body.String()
	}
	front, rear := text(x.front), text(x.rear)
	for _, chunk := range []string{"read", "position_zero", "write", "reply"} {
		sent := series(front, fmt.Sprintf(`rdmabridge_upstream_rdma_chunk_bytes_total{chunk=%q,upstream="middle"}`, chunk))
		came := series(rear, fmt.Sprintf(`rdmabridge_listener_rdma_chunk_bytes_total{chunk=%q,listener="middle"}`, chunk))
		if sent != came || sent == "" || sent == "0" {
			t.Errorf("chunks of kind %s have %q octets at the Requester and %q at the Responder", chunk, sent, came)
		}
	}
	if n := x.rear.proxy.Status(status.Query{}).Upstreams; n[1].Pinned != len(x.across) {
		t.Errorf("%d pinned connections to the last server, want one for each client", n[1].Pinned)
	}
	x.callBack()
}

// callBack lets the server call each client through both bridges.
func (x *twin) callBack() {
	x.t.Helper()
	x.mu.Lock()
	conns := slices.Collect(maps.Keys(x.pinned))
	x.mu.Unlock()
	if len(conns) != len(x.across) {
		x.t.Fatalf("%d connections have brought NFSv4.2, want one for each of %d clients", len(conns), len(x.across))
	}
	called := make(map[*proxytest.Client]bool)
	for _, conn := range conns {
		for j := range 20 {
			m, r := proxytest.CallbackCall(uint32(j), 7*j), proxytest.CallbackReply(uint32(j), 11*j)
			conn.Call(m, 0)
			var c *proxytest.Client
			var got []byte
			select {
			case got = <-x.across[0].Calls:
				c = x.across[0]
			case got = <-x.across[1].Calls:
				c = x.across[1]
			case got = <-x.across[2].Calls:
				c = x.across[2]
			case <-time.After(testkit.Patience):
				x.t.Fatal("no client was called")
			}
			if !bytes.Equal(got, m) || j == 0 && called[c] {
				x.t.Fatalf("a client was called with %x, want %x", got, m)
			}
			called[c] = true
			if err := c.Send(r); err != nil {
				x.t.Fatal(err)
			}
			if got, err := conn.Next(testkit.Patience); err != nil || !bytes.Equal(got, r) {
				x.t.Fatalf("the server was answered %x, %v; want %x", got, err, r)
			}
		}
	}
	if len(called) != len(x.across) {
		x.t.Errorf("%d clients were called of %d", len(called), len(x.across))
	}
}
