package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An auditLine is a line of an audit log.
type auditLine struct {
	Event, Client, Operation, Path, Handle, Name, Result, Call string
	ToPath                                                     string `json:"to_path"`
	NameHex                                                    string `json:"name_hex"`
	UID, GID                                                   *uint32
	Octets, Lines                                              int
}

// auditLines returns the lines of files, of which some may not be there.
func auditLines(t *testing.T, paths ...string) (all []auditLine) {
	t.Helper()
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			var l auditLine
			if err := json.Unmarshal(line, &l); err != nil {
				t.Errorf("%s: %s: %v", path, line, err)
			}
			all = append(all, l)
		}
	}
	return all
}

// nfsCall is a Call of NFS with AUTH_SYS: uid 1001 and gid 1002.
func nfsCall(xid, program, version, procedure uint32, args []byte) []byte {
	b := xdr.AppendWords(nil, xid, 0, 2, program, version, procedure, oncrpc.FlavorSys)
	b = xdr.AppendOpaque(b, xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 1), []byte("host")), 1001, 1002, 0))
	return append(xdr.AppendWords(b, 0, 0), args...)
}

// An nfsClient sends one Call after the other.
type nfsClient struct {
	t    *testing.T
	conn net.Conn
	xid  uint32
}

func dialNFS(t *testing.T, addr string, xid uint32) *nfsClient {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	return &nfsClient{t, c, xid}
}

// call returns the results, which begin with a status.
func (c *nfsClient) call(program, version, procedure uint32, args []byte) []byte {
	c.t.Helper()
	c.xid++
	must(c.t, testkit.WriteRecord(c.conn, nfsCall(c.xid, program, version, procedure, args)))
	m, err := testkit.ReadRecord(c.conn)
	must(c.t, err)
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(m, &r); err != nil || !r.Succeeded() {
		c.t.Fatalf("procedure %d of version %d: %x: %v", procedure, version, m, err)
	}
	return m[r.Results:]
}

func opaques(all ...string) (b []byte) {
	for _, s := range all {
		b = xdr.AppendOpaque(b, []byte(s))
	}
	return b
}

// TestAudit: changes over the demo's server, by a client of NFSv3 and by libnfs, have a line each with path, user and
// result. A hostile name is one line. A reload changes the file, SIGHUP opens it again, and a full disk is told of.
func TestAudit(t *testing.T) {
	t.Parallel()
	testkit.Needs(t, "nfs-cp")
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	text := fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: server}
upstreams:
  - {name: server, transport: tcp, endpoints: [%q]}
names: {mode: on}
admin: {address: %q}
`, startDemoNFS(t, demo.Options{}), testkit.FreeAddr(t))
	logTo := func(path string) string {
		return text + fmt.Sprintf("log: {audit: {operations: [changes, denials], path: %s}}\n", path)
	}
	x := startReload(t, logTo(one))
	must(t, x.b.waitReady(testkit.Patience))
	c := dialNFS(t, x.b.proxy.Addr("nfs"), 100)
	r := c.call(oncrpc.ProgramMount, 3, 1, opaques("/"))
	m := xdr.NewCursor(r, 4)
	pos, n := m.Opaque()
	root := string(r[pos : pos+n])
	created := func(procedure uint32, args []byte) string {
		t.Helper()
		r := c.call(oncrpc.ProgramNFS, 3, procedure, args)
		m := xdr.NewCursor(r, 0)
		if status, handle := m.Uint32(), m.Uint32(); status != 0 || handle != 1 {
			t.Fatalf("procedure %d: status %d", procedure, status)
		}
		pos, n := m.Opaque()
		return string(r[pos : pos+n])
	}
	status := func(procedure uint32, args []byte) uint32 {
		t.Helper()
		return binary.BigEndian.Uint32(c.call(oncrpc.ProgramNFS, 3, procedure, args))
	}
	sattr := make([]byte, 24) // sets nothing
	d := created(9, append(opaques(root, "dir"), sattr...))
	f := created(8, append(append(opaques(d, "file"), 0, 0, 0, 0), sattr...))
	status(1, opaques(f)) // GETATTR has no line
	status(7, append(xdr.AppendWords(opaques(f), 0, 0, 4, 2), opaques("data")...))
	status(14, opaques(d, "file", root, "moved"))
	status(12, opaques(root, "moved"))
	status(12, opaques(root, "moved")) // NOENT
	status(13, opaques(root, "dir"))
	hostile := "a\n{\"event\":\"change\"}\",\xff"
	status(12, opaques(root, hostile))
	want := []string{
		"MKDIR /dir  NFS3_OK 0", "CREATE /dir/file  NFS3_OK 0", "WRITE /dir/file  NFS3_OK 4", "RENAME /dir/file /moved NFS3_OK 0",
		"REMOVE /moved  NFS3_OK 0", "REMOVE /moved  NFS3ERR_NOENT 0", "RMDIR /dir  NFS3_OK 0",
		"REMOVE /a\n{\"event\":\"change\"}\",\ufffd  NFS3ERR_NOENT 0",
	}
	told := func(lines []auditLine) (s []string) {
		for _, l := range lines {
			if l.Event != "change" || l.Client != "127.0.0.1" || l.UID == nil || *l.UID != 1001 || *l.GID != 1002 || l.Call != "" {
				t.Errorf("line %+v", l)
			}
			s = append(s, fmt.Sprintf("%s %s %s %s %d", l.Operation, l.Path, l.ToPath, l.Result, l.Octets))
		}
		return s
	}
	var got []string
	testkit.Eventually(t, "the lines are there", func() bool { got = told(auditLines(t, one)); return len(got) >= len(want) })
	if !slices.Equal(got, want) {
		t.Errorf("the log says %q, want %q", got, want)
	}

	// A full disk, and another one.
	x.reload(logTo("/dev/full"), `"setting":"log.audit.path"`)
	status(12, opaques(root, "lost"))
	testkit.Eventually(t, "the line is dropped", func() bool { return x.has("rdmabridge_audit_dropped_lines_total 1") })
	x.reload(logTo(two), `"setting":"log.audit.path","old":"/dev/full"`)
	testkit.Eventually(t, "the log says what it lacks", func() bool {
		l := auditLines(t, two)
		return len(l) == 1 && l[0].Event == "missing" && l[0].Lines == 1
	})

	// A full disk while changes are denied.
	denies := func(path string) string {
		return strings.Replace(logTo(path), "{audit: {", "{audit: {on_failure: deny, ", 1)
	}
	x.reload(denies("/dev/full"), `"setting":"log.audit.on_failure","old":"drop"`)
	status(12, opaques(root, "kept"))
	const jukebox = 10008
	testkit.Eventually(t, "changes are refused", func() bool { return status(12, opaques(root, "refused")) == jukebox })
	if s := status(1, opaques(root)); s != 0 {
		t.Errorf("GETATTR is refused: %d", s)
	}
	x.metric("rdmabridge_audit_dropped_lines_total 1")
	x.reload(denies(two), `"setting":"log.audit.path","old":"/dev/full"`)
	testkit.Eventually(t, "changes are executed again", func() bool { return status(12, opaques(root, "executed")) != jukebox })
	testkit.Eventually(t, "their lines are there", func() bool {
		l := auditLines(t, two)
		return len(l) >= 3 && l[1].Path == "/kept" && l[len(l)-1].Path == "/executed"
	})

	// logrotate.
	must(t, os.Rename(two, two+".1"))
	x.signals <- syscall.SIGHUP
	testkit.Eventually(t, "the file is there again", func() bool { _, err := os.Stat(two); return err == nil })
	_, port, err := net.SplitHostPort(x.b.proxy.Addr("nfs"))
	must(t, err)
	local := filepath.Join(dir, "data")
	write(t, local, string(testkit.Pattern(100_000, 7)))
	if out, err := exec.Command("nfs-cp", local, fmt.Sprintf("nfs://127.0.0.1//copy?nfsport=%s&mountport=%s", port, port)).CombinedOutput(); err != nil {
		t.Fatalf("nfs-cp: %v: %s", err, out)
	}
	testkit.Eventually(t, "libnfs has written all", func() bool {
		octets, makes := 0, 0
		for _, l := range auditLines(t, two) {
			if l.Path == "/copy" && l.Operation == "WRITE" {
				octets += l.Octets
			}
			if l.Path == "/copy" && l.Operation == "CREATE" {
				makes++
			}
		}
		return octets == 100_000 && makes == 1
	})
	x.reload(text, `"setting":"log.audit.operations`)
	n = len(auditLines(t, two))
	status(12, opaques(root, "off"))
	c.conn.Close()
	x.stop()
	if len(auditLines(t, two)) != n {
		t.Error("the log is off, and has more lines")
	}
}

// An askedServer answers changes of NFSv3 and NFSv4, and remembers those that it has executed.
type askedServer struct {
	addr string

	mu    sync.Mutex
	asked []string // operation, name and result
}

// askedOps are the operations by which the tests change something.
var askedOps = map[uint32]string{12: "REMOVE", 9: "MKDIR", 14: "RENAME"}

func startAskedServer(t *testing.T) *askedServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &askedServer{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for {
					m, err := testkit.ReadRecord(c)
					if err != nil || testkit.WriteRecord(c, s.answer(m)) != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close() }) // connections end with the bridge
	return s
}

// answer executes a Call. What is called denied... is denied.
func (s *askedServer) answer(m []byte) []byte {
	var h oncrpc.Call
	if oncrpc.ParseCall(m, &h) != nil {
		return nil
	}
	reply := xdr.AppendWords(nil, h.XID, 1, 0, 0, 0, 0)
	note := func(operation, name string) (status uint32) {
		if strings.HasPrefix(name, "denied") {
			status = 13
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, operation+" "+name+" "+nfs.StatusName(h.Version, status))
		return status
	}
	text := func(x *xdr.Cursor) string { pos, n := x.Opaque(); return string(m[pos : pos+n]) }
	switch {
	case h.Procedure == 0:
		return reply
	case h.Version == 3:
		x := xdr.NewCursor(m, h.Args)
		x.Opaque()
		return xdr.AppendWords(reply, note(askedOps[h.Procedure], text(&x)), 0, 0, 0, 0, 0, 0)
	}
	var results []byte
	var count, status uint32
	nfs.EachOperation(m, h.Args, func(number uint32, pos int) bool {
		x := xdr.NewCursor(m, pos)
		count++
		switch number {
		case 28: // REMOVE
			status = note("REMOVE", text(&x))
		case 29: // RENAME
			status = note("RENAME", text(&x))
		}
		results = xdr.AppendWords(results, number, status)
		if status == 0 {
			results = append(results, make([]byte, map[uint32]int{28: 20, 29: 40}[number])...)
		}
		return status == 0
	})
	return append(xdr.AppendWords(reply, status, 0, count), results...)
}

func (s *askedServer) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.asked))
}

// change sends the change number i of a client: one of NFSv3, or a COMPOUND of two that may end at the first.
func (c *nfsClient) change(client string, i int) {
	c.t.Helper()
	name := fmt.Sprintf("%s-%d", client, i)
	if i%5 == 0 {
		name = "denied-" + name
	}
	if i%2 == 0 {
		c.call(oncrpc.ProgramNFS, 3, []uint32{12, 9, 14}[i%3], append(opaques("dddd", name, "eeee", "to"), make([]byte, 24)...))
		return
	}
	args := append(xdr.AppendWords(nil, 0, 1, 5, 22), opaques("dddd")...)
	args = append(xdr.AppendUint32(args, 28), opaques(name+"-first")...)
	args = append(xdr.AppendWords(args, 32, 29), opaques(name+"-second", "to")...)
	args = append(xdr.AppendUint32(args, 28), opaques(name+"-third")...)
	c.call(oncrpc.ProgramNFS, 4, 1, args)
}

// said returns what lines say in the words of an askedServer.
func said(lines []auditLine) (s []string) {
	for _, l := range lines {
		s = append(s, l.Operation+" "+l.Name+" "+l.Result)
	}
	slices.Sort(s)
	return s
}

// TestAuditExact: what a server was asked by several clients, over NFSv3 and NFSv4, is what the log says, while reloads
// change its file and SIGHUP opens it again.
func TestAuditExact(t *testing.T) {
	t.Parallel()
	s := startAskedServer(t)
	dir := t.TempDir()
	logTo := func(path string) string {
		return fmt.Sprintf(`
listeners: [{name: nfs, address: "127.0.0.1:0", upstream: s}]
upstreams: [{name: s, transport: tcp, endpoints: [%q]}]
admin: {address: none}
log: {audit: {operations: [changes], path: %s}}
`, s.addr, filepath.Join(dir, path))
	}
	x := startReload(t, logTo("a"))
	must(t, x.b.waitReady(testkit.Patience))
	var wg sync.WaitGroup
	for i := range 4 {
		c := dialNFS(t, x.b.proxy.Addr("nfs"), uint32(i)<<24)
		wg.Go(func() {
			for n := range 300 {
				c.change(fmt.Sprint(i), n)
			}
			c.conn.Close()
		})
	}
	x.reload(logTo("b"), `"setting":"log.audit.path"`)
	must(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "c")))
	x.signals <- syscall.SIGHUP
	x.reload(logTo("d"), `"setting":"log.audit.path"`)
	wg.Wait()
	x.stop()
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if got, want := said(auditLines(t, files...)), s.all(); !slices.Equal(got, want) {
		t.Errorf("the log has %d lines, and the server was asked %d times:\n%q\n%q", len(got), len(want), got, want)
	}
}

// TestAuditHandover: the log is exact over a hand-over, after which two processes write to its file for a while.
func TestAuditHandover(t *testing.T) {
	s := startAskedServer(t)
	dir := t.TempDir()
	path, file, addr := filepath.Join(dir, "audit.log"), filepath.Join(dir, "bridge.yaml"), testkit.FreeAddr(t)
	write(t, file, fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: s}]
upstreams: [{name: s, transport: tcp, endpoints: [%q]}]
admin: {address: none}
memory: {budget: 256MiB}
handover: {path: %s/h.sock}
log: {audit: {operations: [changes], path: %s}}
`, addr, s.addr, dir, path))
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"message":"connected to upstream"`)
	var done atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // one client, which connects again when the old process has closed its connection
		defer close(ended)
		xid := uint32(100)
		for i := 0; ; {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.SetDeadline(time.Now().Add(testkit.Patience))
			for {
				select {
				case <-stop:
					c.Close()
					return
				default:
				}
				m := nfsCall(xid, oncrpc.ProgramNFS, 3, 12, opaques("dddd", fmt.Sprint(i)))
				if testkit.WriteRecord(c, m) != nil {
					break
				}
				if _, err := testkit.ReadRecord(c); err != nil {
					break
				}
				i, xid = i+1, xid+1
				done.Add(1)
			}
			c.Close()
		}
	}()
	more := func() {
		n := done.Load()
		testkit.Eventually(t, "more Calls are answered", func() bool { return done.Load() > n+100 })
	}
	more()
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"take-over complete"`)
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	more()
	close(stop)
	<-ended
	syscall.Kill(successorPID(t, log), syscall.SIGTERM)
	want := s.all()
	var got []string
	testkit.Eventually(t, "all lines are there", func() bool { got = said(auditLines(t, path)); return len(got) >= len(want) })
	if !slices.Equal(got, want) {
		t.Errorf("the log has %d lines, and the server was asked %d times", len(got), len(want))
	}
}
