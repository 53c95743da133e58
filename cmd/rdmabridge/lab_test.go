//go:build lab

package main

// Tests against the Linux kernel's NFS client and server, in the guest of deploy/lab:
//
//	the guest's NFS client -- TCP --> rdmabridge on this host -- iWARP --> the guest's knfsd
//	                                      '---- MOUNT over TCP ---> the guest's mountd
//
// One guest serves every test. RDMABRIDGE_LAB=1 promises that deploy/lab/install.sh was
// run; without it the tests skip. With RDMABRIDGE_LAB_DIRECT=1 the client mounts the
// guest's own server over plain TCP: what fails then is not the bridge's doing.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kernelVersions are the NFS versions that the Linux client mounts.
var kernelVersions = []string{"3", "4.0", "4.1", "4.2"}

func TestLab(t *testing.T) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" {
		t.Skip("needs the packages and the kernel of deploy/lab/install.sh: set RDMABRIDGE_LAB=1")
	}
	g := bootGuest(t)
	direct := os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1"
	far := farEnd{nfs: g.nfs, mount: g.mount}
	var b *bridgeProcess
	if !direct {
		b = startBridge(t, g)
		far = farEnd{nfs: b.port, mount: b.port}
	}

	t.Run("siw", func(t *testing.T) { testSIW(t, g) })
	for _, v := range kernelVersions {
		t.Run("files/"+v, func(t *testing.T) {
			g.job(t, 6*time.Minute, far.script("/lab/files.sh", v))
			b.wantQuiet(t)
		})
	}
	for _, v := range kernelVersions {
		t.Run("fio/"+v, func(t *testing.T) {
			g.job(t, 5*time.Minute, far.script("SIZE=2m /lab/fio.sh", v))
			b.wantQuiet(t)
		})
	}
	t.Run("libnfs", func(t *testing.T) {
		testLibNFS(t, g, far)
		b.wantQuiet(t)
	})
	t.Run("wire", func(t *testing.T) {
		if direct {
			t.Skip("no bridge, nothing on the wire")
		}
		testWire(t, g)
	})
	t.Run("copies", func(t *testing.T) {
		if direct {
			t.Skip("no bridge, no counters")
		}
		testCopies(t, g, b, far)
		b.wantQuiet(t)
	})
	for _, v := range []string{"3", "4.1"} {
		t.Run("restart/"+v, func(t *testing.T) {
			g.job(t, 6*time.Minute, far.script("RESTART=1 SIZE=8m /lab/fio.sh", v))
			b.wantNoErrors(t)
		})
	}
	t.Run("stop", func(t *testing.T) { b.stop(t) })
}

// testSIW runs the tests of package iwarp that need siw at the other end, both ways
// round. They are in that package because they go around the bridge.
func testSIW(t *testing.T, g *guest) {
	p := freePorts(t, 1)[0]
	test := func(name string, more ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-tags", "lab", "-count=1", "-timeout", "5m", "-v",
			"-run", name, "../../rdmaside/iwarp")
		cmd.Env = append(os.Environ(), fmt.Sprintf("RDMABRIDGE_SIW=127.0.0.1:%d", g.rdma),
			fmt.Sprintf("RDMABRIDGE_SIW_MOUNT=127.0.0.1:%d", g.mount))
		cmd.Env = append(cmd.Env, more...)
		return cmd
	}
	check := func(t *testing.T, out []byte, err error) {
		t.Helper()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) || bytes.Contains(out, []byte("--- SKIP")) {
			t.Errorf("%v\n%s", err, tail(out, 60))
		}
	}
	t.Run("responder", func(t *testing.T) {
		out, err := test("TestSIW(Null|Chunks|Reject)$").CombinedOutput()
		check(t, out, err)
	})
	t.Run("initiator", func(t *testing.T) {
		cmd := test("TestSIWInitiator$", fmt.Sprintf("RDMABRIDGE_SIW_RPING=127.0.0.1:%d", p))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// One rping for each kind of Reply; the listener of the next may need a moment,
		// and an rping that was refused does not end by itself.
		g.job(t, 2*time.Minute, fmt.Sprintf(`n=0
sleep 5
for try in $(seq 9); do
    timeout 10 rping -c -a 10.0.2.2 -p %d -C 10 -S 4096 -V && n=$((n + 1))
    [ $n = 3 ] && exit 0
    sleep 1
done
exit 1`, p))
		err := cmd.Wait()
		check(t, out.Bytes(), err)
	})
}

// testLibNFS is the userspace client: NFSv3 both ways, NFSv4 reading. Debian's nfs-cp
// opens an NFSv4 destination and then fails by itself, whatever the server.
func testLibNFS(t *testing.T, g *guest, far farEnd) {
	g.job(t, 30*time.Second, "mkdir -m 777 /export/libnfs && echo small > /export/libnfs/small && mkdir /export/libnfs/sub")
	data := make([]byte, 64<<20)
	rng := rand.NewChaCha8([32]byte([]byte("a seed that a failure can repeat")))
	rng.Read(data)
	want := sha256.Sum256(data)
	local := filepath.Join(t.TempDir(), "local")
	if err := os.WriteFile(local, data, 0o600); err != nil {
		t.Fatal(err)
	}
	v3 := func(name string) string {
		return fmt.Sprintf("nfs://127.0.0.1/export/libnfs/%s?nfsport=%d&mountport=%d", name, far.nfs, far.mount)
	}
	v4 := func(name string) string {
		return fmt.Sprintf("nfs://127.0.0.1/libnfs/%s?version=4&nfsport=%d", name, far.nfs)
	}
	run(t, 3*time.Minute, "nfs-cp", local, v3("big"))
	if out := g.job(t, time.Minute, "sha256sum /export/libnfs/big"); !strings.HasPrefix(out, fmt.Sprintf("%x ", want)) {
		t.Errorf("the server's copy has SHA-256 %s, want %x", out, want)
	}
	for name, url := range map[string]func(string) string{"3": v3, "4": v4} {
		t.Run(name, func(t *testing.T) {
			if got := sha256.Sum256(run(t, 3*time.Minute, "nfs-cat", url("big"))); got != want {
				t.Errorf("nfs-cat: SHA-256 %x, want %x", got, want)
			}
			copied := filepath.Join(t.TempDir(), "copied")
			run(t, 3*time.Minute, "nfs-cp", url("small"), copied)
			if got, err := os.ReadFile(copied); err != nil || string(got) != "small\n" {
				t.Errorf("nfs-cp: %q, %v", got, err)
			}
			names := string(run(t, time.Minute, "nfs-ls", url("")))
			for _, want := range []string{`(?m)^-.* 67108864 big$`, `(?m)^-.* 6 small$`, `(?m)^d.* sub$`} {
				if !regexp.MustCompile(want).MatchString(names) {
					t.Errorf("nfs-ls: no line %s in\n%s", want, names)
				}
			}
		})
	}
	g.job(t, 30*time.Second, "rm -r /export/libnfs")
}

// testWire captures both legs of a short run through a bridge of its own, so that every
// connection is seen from its first octet, and has tshark decode it.
func testWire(t *testing.T, g *guest) {
	pcap := filepath.Join(t.TempDir(), "wire.pcap")
	b := newBridgeProcess(t, g)
	// -B: a burst of loopback frames must not be lost; -Z: the file is in a directory of ours.
	capture := start(t, "tcpdump", "-i", "lo", "-Z", "root", "-B", "65536", "-s", "0", "-U", "-w", pcap,
		fmt.Sprintf("tcp port %d or tcp port %d or tcp port %d", b.port, g.rdma, g.mount))
	waitFor(t, 20*time.Second, "tcpdump", func() bool {
		st, err := os.Stat(pcap)
		return err == nil && st.Size() > 0
	})
	b.start(t)
	for _, v := range kernelVersions {
		g.job(t, 2*time.Minute, farEnd{nfs: b.port, mount: b.port}.script("LOCKS=no SIZES='0 1 3 4095 4096 65537 300001' /lab/files.sh", v))
	}
	b.stop(t)
	b.wantQuiet(t)
	time.Sleep(time.Second) // what tcpdump still holds
	capture.end(t, syscall.SIGINT)

	// Loopback segments come again, late and out of order, when the host is busy.
	tshark := func(args ...string) []byte {
		return run(t, 5*time.Minute, "tshark", append([]string{
			"-r", pcap, "-o", "tcp.reassemble_out_of_order:TRUE", "-d", fmt.Sprintf("tcp.port==%d,rpc", b.port),
		}, args...)...)
	}
	count := func(filter string) int {
		return bytes.Count(tshark("-Y", filter, "-T", "fields", "-e", "frame.number"), []byte("\n"))
	}
	for _, filter := range []string{
		fmt.Sprintf("nfs && tcp.port == %d", b.port),
		fmt.Sprintf("mount && tcp.port == %d", b.port),
		fmt.Sprintf("nfs && rpcordma && tcp.port == %d", g.rdma),
		"rpcordma.reads_count > 0",
		"rpcordma.writes_count > 0",
		"rpcordma.reply_count > 0",
		"iwarp_mpa.req",
		"iwarp_mpa.rep",
	} {
		if n := count(filter); n == 0 {
			t.Errorf("tshark: no frame for %q", filter)
		} else {
			t.Logf("%6d frames: %s", n, filter)
		}
	}
	// tshark 4.0 calls a READ Reply malformed when its data went into a Write chunk.
	if bad := tshark("-Y", "_ws.malformed && !(rpcordma.writes_count > 0)"); len(bad) > 0 {
		t.Errorf("malformed frames:\n%s", head(bad, 20))
	}
	if bad := tshark("-Y", "rpcordma.msg_type == 4 || iwarp_rdma.opcode == 7"); len(bad) > 0 {
		t.Errorf("RDMA_ERROR or Terminate:\n%s", head(bad, 20))
	}
	verbose := tshark("-Y", "iwarp_mpa", "-V")
	good, bad := bytes.Count(verbose, []byte("(Good CRC32)")), bytes.Count(verbose, []byte("(Bad CRC32"))
	if good == 0 || bad > 0 {
		t.Errorf("CRCs: %d good, %d bad", good, bad)
	}
	t.Logf("%6d FPDUs with a good CRC", good)
}

// testCopies: on the way from knfsd to the client the data of a READ are copied at
// most once in user space, which is what copied_bytes_total counts.
func testCopies(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	const payload, reads = 32 << 20, 32
	count := func() (copied, carried, inChunks float64) {
		return b.metric(t, `copied_bytes_total{`), b.metric(t, `tcp_sent_bytes_total{listener="nfs"}`),
			b.metric(t, `requester_calls_total{call="inline",reply="write_chunk"`)
	}
	copied, carried, inChunks := count()
	g.job(t, 3*time.Minute, far.script("/lab/read.sh", "3"))
	copied2, carried2, inChunks2 := count()
	copied, carried, inChunks = copied2-copied, carried2-carried, inChunks2-inChunks
	t.Logf("%.0f octets sent, %.0f copied, %.0f Replies in Write chunks", carried, copied, inChunks)
	if inChunks < reads || carried < payload {
		t.Errorf("%.0f Replies in Write chunks and %.0f octets sent, want %d READs of 1 MiB", inChunks, carried, reads)
	}
	// A hundredth more is for the small messages: they are copied twice.
	if copied > carried*1.01 {
		t.Errorf("%.0f octets copied to send %.0f", copied, carried)
	}
}

// A farEnd is the two TCP ports of this host that the guest's client mounts.
type farEnd struct{ nfs, mount int }

func (f farEnd) script(command, vers string) string {
	return fmt.Sprintf("%s %s 10.0.2.2 %d %d", command, vers, f.nfs, f.mount)
}

// A guest is a running lab guest. Ports are on 127.0.0.1 of this host.
type guest struct {
	dir              string // the guest's /host
	console          string
	qemu             *process
	nfs, mount, rdma int
	jobs             int
}

func bootGuest(t *testing.T) *guest {
	t.Helper()
	dir := t.TempDir()
	initrd := filepath.Join(dir, "guest.zst")
	run(t, 3*time.Minute, "../../deploy/lab/mkinitrd.sh", initrd)
	p := freePorts(t, 3)
	g := &guest{
		dir: filepath.Join(dir, "host"), console: filepath.Join(dir, "console"),
		nfs: p[0], mount: p[1], rdma: p[2],
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g.qemu = start(t, "../../deploy/lab/boot.sh", initrd, "--share", g.dir, "--log", g.console,
		"--mem", "5120", // with less, knfsd takes no WRITE of 1 MiB
		"--append", "lab.rdma=siw lab.server=1",
		"--fwd", fmt.Sprintf("%d:2049", g.nfs), "--fwd", fmt.Sprintf("%d:20048", g.mount), "--fwd", fmt.Sprintf("%d:20049", g.rdma))
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(g.console)
			t.Logf("the guest's console:\n%s", tail(text, 60))
		}
	})
	waitFor(t, 3*time.Minute, "the guest", func() bool {
		text, _ := os.ReadFile(g.console)
		return bytes.Contains(text, []byte("lab: READY")) || !g.qemu.alive()
	})
	if !g.qemu.alive() {
		t.Fatalf("the guest ended:\n%s", g.qemu.output())
	}
	return g
}

// job runs a shell script in the guest and returns what it wrote. The test fails when the
// script does, or does not end in time; the guest then stays as it is.
func (g *guest) job(t *testing.T, timeout time.Duration, script string) string {
	t.Helper()
	g.jobs++
	name := filepath.Join(g.dir, fmt.Sprintf("job%03d", g.jobs))
	if err := os.WriteFile(name+".new", []byte(script+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name+".job"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var rc []byte
	for {
		var err error
		if rc, err = os.ReadFile(name + ".rc"); err == nil {
			break
		}
		if !g.qemu.alive() {
			t.Fatalf("the guest ended under %q", script)
		}
		if time.Since(begun) > timeout {
			out, _ := os.ReadFile(name + ".out")
			t.Fatalf("%q has not ended after %v; so far:\n%s", script, timeout, tail(out, 40))
		}
		time.Sleep(50 * time.Millisecond)
	}
	out, err := os.ReadFile(name + ".out")
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.TrimSpace(string(rc)); s != "0" {
		t.Fatalf("%q: status %s after %v\n%s", script, s, time.Since(begun).Round(time.Second), tail(out, 40))
	}
	return string(out)
}

// A bridgeProcess is `rdmabridge serve` in front of a guest. A nil one, which stands for
// no bridge, has nothing to say and nothing to stop.
type bridgeProcess struct {
	binary, config string
	port, admin    int
	process        *process
	read           int // of the log, by wantQuiet and wantNoErrors
}

func startBridge(t *testing.T, g *guest) *bridgeProcess {
	t.Helper()
	b := newBridgeProcess(t, g)
	b.start(t)
	return b
}

func newBridgeProcess(t *testing.T, g *guest) *bridgeProcess {
	t.Helper()
	p := freePorts(t, 2)
	dir := t.TempDir()
	b := &bridgeProcess{
		binary: filepath.Join(dir, "rdmabridge"), config: filepath.Join(dir, "rdmabridge.yaml"),
		port: p[0], admin: p[1],
	}
	run(t, 10*time.Minute, "go", "build", "-o", b.binary, ".")
	text := fmt.Sprintf(`
listeners:
  - name: nfs
    address: 127.0.0.1:%d
    transport: tcp
    upstream: storage
    routes:
      - {program: mount, upstream: storage-tcp}
upstreams:
  - name: storage
    transport: rdma
    provider: iwarp
    endpoints: ["127.0.0.1:%d"]
    pool: {connections: 4, credits: 128, mode: auto}
  - name: storage-tcp
    transport: tcp
    endpoints: ["127.0.0.1:%d"]
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, b.port, g.rdma, g.mount, b.admin)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, 10*time.Second, b.binary, "check", "-c", b.config)
	return b
}

func (b *bridgeProcess) start(t *testing.T) {
	t.Helper()
	b.process = start(t, b.binary, "serve", "-c", b.config)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the bridge's log:\n%s", tail(b.process.output(), 60))
		}
	})
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

// metric is the sum of the series that begin with prefix, which goes without
// rdmabridge_.
func (b *bridgeProcess) metric(t *testing.T, prefix string) (sum float64) {
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
	found := false
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
	if !found {
		t.Errorf("no metric rdmabridge_%s", prefix)
	}
	return sum
}

// news returns the log lines, since the last call, whose level is one of levels.
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

// wantQuiet fails when the bridge had anything to complain about.
func (b *bridgeProcess) wantQuiet(t *testing.T) {
	t.Helper()
	if b == nil {
		return
	}
	if lines := b.news(t, "warn", "error", "fatal", "panic"); len(lines) > 0 {
		t.Errorf("the bridge complained:\n%s", strings.Join(lines, ""))
	}
}

// wantNoErrors is wantQuiet where an upstream went away, which is a warning.
func (b *bridgeProcess) wantNoErrors(t *testing.T) {
	t.Helper()
	if b == nil {
		return
	}
	if lines := b.news(t, "error", "fatal", "panic"); len(lines) > 0 {
		t.Errorf("the bridge failed:\n%s", strings.Join(lines, ""))
	}
}

// stop drains the bridge. No client is left, so that takes no time.
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

// A process is a child that ends with its test at the latest.
type process struct {
	cmd   *exec.Cmd
	out   *os.File // standard output and error
	ended chan struct{}
	err   error // once ended is closed
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(name)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(name, args...), out: out, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// The child dies with this process even where no cleanup runs, as after a timeout.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = out.Close()
	})
	return p
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) output() []byte {
	b, _ := os.ReadFile(p.out.Name())
	return b
}

// end sends a signal and waits, for at most 40 s.
func (p *process) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	select {
	case <-p.ended:
	case <-time.After(40 * time.Second):
		t.Fatalf("%s does not end on %v", p.cmd.Path, s)
	}
}

// run returns the standard output of a command that must succeed.
func run(t *testing.T, timeout time.Duration, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, tail(stderr.Bytes(), 20))
	}
	return out.Bytes()
}

func waitFor(t *testing.T, timeout time.Duration, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ready(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is not there after %v", what, timeout)
		}
	}
}

// freePorts returns n different TCP ports that nobody listened on a moment ago.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func head(b []byte, lines int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	return bytes.Join(all[:min(lines, len(all))], nil)
}

func tail(b []byte, lines int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines-1):], nil)
}
