//go:build !nodemo

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tshark"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// startCaptureCommand runs capture, and returns when it has begun. stop ends it as Ctrl-C does.
func startCaptureCommand(t *testing.T, args ...string) (stop func() string) {
	t.Helper()
	sock := args[slices.Index(args, "--socket")+1]
	awaitControl(t, sock, os.Getpid())
	cmd, f := captureCommand()
	said := new(testkit.Log)
	cmd.SetErr(said)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx, cmd) }()
	testkit.Eventually(t, "the capture begins", func() bool { return strings.Contains(said.String(), "capturing") || len(ended) > 0 })
	return func() string {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("capture: %v", err)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("the capture does not end")
		}
		return said.String()
	}
}

// TestCapture captures NFSv3 READs and WRITEs of up to 1 MiB, whose data move by RDMA on the way to the
// server, and has tshark decode them.
func TestCapture(t *testing.T) {
	t.Parallel()
	testkit.Needs(t, "tshark", "nfs-cp")
	dir := t.TempDir()
	sock := filepath.Join(dir, "c.sock")
	far := testkit.FreeAddr(t)
	b, signals, wait := startServe(t, fmt.Sprintf(`
listeners:
  - {name: near, address: 127.0.0.1:0, upstream: far}
  - {name: far, transport: rdma, address: %q, upstream: server}
upstreams:
  - {name: far, transport: rdma, endpoints: [%q]}
  - {name: server, transport: tcp, endpoints: [%q]}
admin: {address: none}
control: {path: %q}
`, far, far, startDemoNFS(t, demo.Options{}), sock))
	if err := b.waitReady(testkit.Patience); err != nil {
		t.Fatal(err)
	}
	whole, cut := filepath.Join(dir, "whole.pcapng"), filepath.Join(dir, "cut.pcapng")
	ring, failed := filepath.Join(dir, "ring.pcapng"), filepath.Join(dir, "failed.pcapng")
	trigger := filepath.Join(dir, "trigger.pcapng")
	start := func(args ...string) func() string {
		return startCaptureCommand(t, append([]string{"--socket", sock, "--listener", "near", "-w"}, args...)...)
	}
	stops := []func() string{
		start(whole, "--payload", "--buffer", "256MiB"),
		start(cut),
		start(ring, "--payload", "--buffer", "256MiB", "--ring", "3x2MiB"),
		start(failed, "--status", "noent"),
		start(trigger, "--trigger", "status=noent", "--before", "10m", "--after", "forever", "--operation", "LOOKUP"),
	}

	_, port, err := net.SplitHostPort(b.proxy.Addr("near"))
	if err != nil {
		t.Fatal(err)
	}
	url := func(name string) string {
		return fmt.Sprintf("nfs://127.0.0.1//%s?nfsport=%s&mountport=%s", name, port, port)
	}
	samePortTwice(t, b.proxy.Addr("near"))
	data := testkit.Pattern(3<<20+17, byte(7))
	local := filepath.Join(dir, "data")
	write(t, local, string(data))
	for _, args := range [][]string{{local, url("data")}, {url("data"), local + "2"}} {
		if out, err := exec.Command("nfs-cp", args...).CombinedOutput(); err != nil {
			t.Fatalf("nfs-cp: %v: %s", err, out)
		}
	}
	if out, err := exec.Command("nfs-cp", url("nothing"), local+"3").CombinedOutput(); err == nil {
		t.Fatalf("a file that is not there was copied: %s", out)
	}
	for _, stop := range stops {
		if s := stop(); strings.Contains(s, "missing") {
			t.Error(s)
		}
	}

	packets, n := tshark.Decode(t, whole)
	if n < 60 || n%2 != 0 {
		t.Errorf("%d Calls on both legs", n)
	}
	for leg := range 2 {
		for _, what := range []struct{ name, kind, procedure string }{{"WRITE", "0", "7"}, {"READ", "1", "6"}} {
			var got []byte
			for _, p := range packets {
				if p.Leg == strconv.Itoa(leg) && p.Kind == what.kind && p.Procedure == what.procedure {
					b, err := hex.DecodeString(p.Data)
					if err != nil {
						t.Fatalf("tshark says %.80q", p.Data)
					}
					got = append(got, b...)
				}
			}
			if !bytes.Equal(got, data) {
				t.Errorf("the data of %s on leg %d are not those of the file: %d octets", what.name, leg, len(got))
			}
		}
	}
	packets, without := tshark.Decode(t, cut)
	short := 0
	var comments strings.Builder
	for _, p := range packets {
		if p.Cut {
			short++
		}
		comments.WriteString(p.Comment + "\n")
	}
	if without != n || short != 16 {
		t.Errorf("%d Calls instead of %d; %d messages are cut, want 4 READs and 4 WRITEs on 2 legs", without, n, short)
	}
	if info, err := os.Stat(cut); err != nil || info.Size() > 200<<10 {
		t.Errorf("without data the capture has %d octets", info.Size())
	}
	for _, want := range []string{"call_by=read_chunk(position=", "reply_by=write_chunk(octets=1048576)", " server=", " credits=", " upstream_xid=0x", "connection ended"} {
		if !strings.Contains(comments.String(), want) {
			t.Errorf("no comment says %q", want)
		}
	}

	checkTable(t, cut)
	checkFiles(t, cut)

	// Each file of the ring can be read, and only so many are there.
	rings, err := filepath.Glob(filepath.Join(dir, "ring_0*.pcapng"))
	if err != nil || len(rings) != 3 {
		t.Fatalf("%v, %v", rings, err)
	}
	for _, file := range rings {
		for _, l := range tshark.Lines(t, file, "-Y", "_ws.malformed") {
			t.Errorf("%s: %s", file, l)
		}
		if info, err := os.Stat(file); err != nil || info.Size() > 3200<<10 { // and the rest of a message
			t.Errorf("%s has %d octets", file, info.Size())
		}
	}
	if _, n := tshark.Decode(t, failed); n != 2 {
		t.Errorf("%d Calls with NOENT on both legs, want 2", n)
	}
	if _, n := tshark.Decode(t, trigger); n < 2 {
		t.Errorf("%d Calls led to NOENT", n)
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// samePortTwice has a client come again from the port it had, as Linux does and libnfs may. Each time it
// makes one Call with the same XID: the two must stay apart in a capture.
func samePortTwice(t *testing.T, addr string) {
	t.Helper()
	// The kernel gives this port to no connection of others meanwhile.
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(testkit.FreeAddr(t)))
	for range 2 {
		d := net.Dialer{LocalAddr: from, Timeout: testkit.Patience, Control: proxytest.SharePort}
		nc, err := d.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		if err := testkit.WriteRecord(nc, nullCall(1, 100003, 3)); err != nil {
			t.Fatal(err)
		}
		if _, err := testkit.ReadRecord(nc); err != nil {
			t.Fatal(err)
		}
		if err := nc.(*net.TCPConn).SetLinger(0); err != nil { // no TIME-WAIT
			t.Fatal(err)
		}
		nc.Close()
	}
}

// checkFiles checks what explain --path says of the capture of both legs: the data and no other Call on each.
func checkFiles(t *testing.T, file string) {
	t.Helper()
	count := func(path string) map[string]int {
		var out, errOut bytes.Buffer
		if code := execute([]string{"explain", "--path", path, "--json", file}, &out, &errOut); code != cli.ExitDone {
			t.Fatalf("explain: %d, %s", code, &errOut)
		}
		n := make(map[string]int)
		for line := range bytes.Lines(out.Bytes()) {
			var m struct {
				Kind string
				Call struct {
					Procedure string `json:"procedure_name"`
					File      struct{ Path string }
				}
				Unknown int `json:"unknown_files"`
			}
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			if m.Kind == "call" || m.Kind == "reply" {
				n[m.Kind]++
			}
			if m.Call.Procedure != "" {
				n[m.Call.Procedure]++
				if m.Call.File.Path != path {
					t.Errorf("--path %s shows a Call about %q", path, m.Call.File.Path)
				}
			}
			n["unknown"] += m.Unknown
		}
		return n
	}
	if n := count("/data"); n["READ"] != 8 || n["WRITE"] != 8 || n["call"] != n["reply"] || n["LOOKUP"]+n["FSINFO"]+n["unknown"] > 0 {
		t.Errorf("--path /data: %v", n)
	}
	if n := count("/nothing"); n["call"]+n["reply"]+n["unknown"] > 0 {
		t.Errorf("--path /nothing: %v", n)
	}
}

// checkTable checks what explain --summary says of the capture of both legs.
func checkTable(t *testing.T, file string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if code := execute([]string{"explain", "--summary", "--json", file}, &out, &errOut); code != cli.ExitDone {
		t.Fatalf("explain: %d, %s", code, &errOut)
	}
	var table struct {
		Operations []struct {
			Program, Operation string
			Calls, Errors      int
			Bytes              int64
			RTT                *float64 `json:"avg_rtt"`
			Exe                *float64 `json:"avg_exe"`
			Bridge             *float64 `json:"avg_bridge"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &table); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, o := range table.Operations {
		if o.RTT == nil || o.Exe == nil || o.Bridge == nil || *o.Exe < *o.RTT {
			t.Errorf("times of %+v", o)
		}
		switch o.Program + " " + o.Operation {
		case "nfs3 READ", "nfs3 WRITE":
			found++
			if o.Calls != 4 || o.Bytes < 3<<20 || o.Errors != 0 {
				t.Errorf("%+v", o)
			}
		case "nfs3 LOOKUP":
			found++
			if o.Errors != 1 {
				t.Errorf("%+v", o)
			}
		}
	}
	if found != 3 {
		t.Errorf("READ, WRITE and LOOKUP are not all in %s", &out)
	}
	out.Reset()
	if code := execute([]string{"explain", "--summary", file}, &out, &errOut); code != cli.ExitDone || !strings.Contains(out.String(), "avg RTT (ms)") {
		t.Errorf("explain: %d, %s%s", code, &out, &errOut)
	}
}

// TestCaptureSessions captures NFSv4.1 with callbacks, from clients on TCP to a server on RDMA.
func TestCaptureSessions(t *testing.T) {
	t.Parallel()
	testkit.Needs(t, "tshark")
	engine, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 1, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Stop)
	arena, err := regmem.New(regmem.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close() })
	server := nfs4test.NewServer(nfs4test.ServerOptions{})
	t.Cleanup(server.Close)
	var loops []loop.Loop
	var sockets []loop.SocketLoop
	for _, l := range engine.Loops() {
		loops, sockets = append(loops, l), append(sockets, l)
	}
	addr, err := server.ListenRDMA(nfs4test.RDMAOptions{
		Address: "127.0.0.1:0", Provider: proxytest.IWARP(iwarp.Options{Log: zerolog.Nop()}), Loops: loops, Arena: arena, Credits: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sock := filepath.Join(dir, "c.sock")
	b, signals, wait := startServe(t, fmt.Sprintf("listeners: [{name: nfs, address: '127.0.0.1:0', upstream: s}]\n"+
		"upstreams: [{name: s, transport: rdma, endpoints: [%q]}]\nadmin: {address: none}\ncontrol: {path: %q}\n", addr, sock))
	if err := b.waitReady(testkit.Patience); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sessions.pcapng")
	stop := startCaptureCommand(t, "--socket", sock, "-w", file, "--payload")
	cs := nfs4test.NewClients(2, nfs4test.ClientsOptions{Target: b.proxy.Addr("nfs"), Loops: sockets, Prefix: "capture", Slots: 4})
	t.Cleanup(cs.Close)
	cs.Start()
	testkit.Eventually(t, "the clients have sessions", func() bool { return cs.Up() == 2 })
	l := cs.Load([]int{0, 1}, 2, nfs4test.Op(100_000))
	testkit.Eventually(t, "the clients read", func() bool { return l.Replies.Load() > 40 })
	l.Stop()
	for i := range 2 {
		r := server.Recall(cs.Owner(i), uint64(100+i))
		select {
		case <-r.Done():
			if r.Err != nil || r.Status != nfs4test.OK {
				t.Errorf("callback %d: %v %v", i, r.Status, r.Err)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("a callback is not answered")
		}
	}
	if err := cs.Err(); err != nil {
		t.Error(err)
	}
	if s := stop(); strings.Contains(s, "missing") {
		t.Error(s)
	}
	packets, n := tshark.Decode(t, file)
	if n < 80 {
		t.Errorf("%d Calls", n)
	}
	recalls, reads := map[string]int{}, map[string]int{}
	for _, p := range packets {
		if p.Kind == "0" && slices.Contains(strings.Split(p.Callbacks, ";"), "4") {
			recalls[p.Leg]++
		}
		if p.Kind == "1" && slices.Contains(strings.Split(p.Operations, ";"), "25") {
			reads[p.Leg]++
		}
	}
	for _, leg := range []string{"0", "1"} {
		if recalls[leg] != 2 || reads[leg] < 40 {
			t.Errorf("interface %s: %d CB_RECALLs, want 2; %d Replies to READ, want 40 or more", leg, recalls[leg], reads[leg])
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// A capture may go to /dev/null, which is a character device as a terminal is.
func TestOnTerminal(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if cli.IsTerminal(f) {
		t.Error("/dev/null is taken for a terminal")
	}
	f, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if !cli.IsTerminal(f) {
		t.Error("a terminal is not taken for one")
	}
}
