//go:build !nodemo

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestNames: a reload has the bridge learn names, top shows them with the octets that libnfs has moved, a capture may
// run beside, the admin address has none of it, and another reload ends it.
func TestNames(t *testing.T) {
	t.Parallel()
	testkit.Needs(t, "nfs-cp")
	dir := t.TempDir()
	sock, admin := filepath.Join(dir, "c.sock"), testkit.FreeAddr(t)
	text := fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: server}
upstreams:
  - {name: server, transport: tcp, endpoints: [%q]}
admin: {address: %q}
control: {path: %q}
`, startDemoNFS(t, demo.Options{}), admin, sock)
	x := startReload(t, text)
	must(t, x.b.waitReady(testkit.Patience))
	awaitControl(t, sock, os.Getpid())
	top := func(args ...string) string {
		t.Helper()
		code, out, errOut := run(append([]string{"top", "--once", "--interval", "100ms", "--socket", sock}, args...)...)
		if code != 0 {
			t.Fatalf("top %v: %d %s", args, code, errOut)
		}
		return out
	}
	if s := top("--files"); !strings.Contains(s, "This bridge learns no names") {
		t.Errorf("names are off, and top says\n%s", s)
	}
	if code, _, errOut := run("capture", "--socket", sock, "-w", filepath.Join(dir, "no.pcapng"), "--export", "/"); code != 1 || !strings.Contains(errOut, "set names.mode to on") {
		t.Errorf("names are off, and capture --export says %d %s", code, errOut)
	}
	x.reload(text+"names: {sample: 100%, mode: on, metrics: [/]}\n", `"setting":"names.mode","old":"off","new":"on"`)
	stopCapture := startCaptureCommand(t, "--socket", sock, "-w", filepath.Join(dir, "c.pcapng"))
	stopData := startCaptureCommand(t, "--socket", sock, "-w", filepath.Join(dir, "d.pcapng"), "--path", "/da*", "--export", "/", "--operation", "READ,WRITE", "--leg", "clients")
	_, port, err := net.SplitHostPort(x.b.proxy.Addr("nfs"))
	must(t, err)
	url := fmt.Sprintf("nfs://127.0.0.1//data?nfsport=%s&mountport=%s", port, port)
	const size = 3<<20 + 17
	local := filepath.Join(dir, "data")
	write(t, local, string(testkit.Pattern(size, byte(7))))
	for _, args := range [][]string{{local, url}, {url, local + "2"}, {url, local + "3"}} {
		if out, err := exec.Command("nfs-cp", args...).CombinedOutput(); err != nil {
			t.Fatalf("nfs-cp: %v: %s", err, out)
		}
	}
	stopCapture()
	if said := stopData(); !regexp.MustCompile(`(?m)^[1-9]\d* calls, [1-9]\d* messages$`).MatchString(said) {
		t.Errorf("capture --path: %s", said)
	}
	var n status.Names
	c := control.NewClient(sock)
	defer c.Close()
	testkit.Eventually(t, "the file is counted", func() bool {
		n = status.Names{}
		must(t, c.Get(t.Context(), names.Path, &n))
		return len(n.Files) > 0 && n.Files[0].Read == 2*size
	})
	for _, h := range []status.Hot{n.Files[0], n.Exports[0], n.Clients[0]} {
		if h.Export != "/" || h.Read != 2*size || h.Written != size || h.Calls < 6 || h.Error != 0 || h.Mean <= 0 || h.Listener != "nfs" {
			t.Errorf("counted %+v", h)
		}
	}
	if f := n.Files[0]; f.Path != "/data" || n.Clients[0].Client != "127.0.0.1" || n.Missed != 0 {
		t.Errorf("%+v", n)
	}
	for view, want := range map[string]string{"--files": `(?m)^/data +/ +nfs`, "--exports": `(?m)^/ +nfs`, "--clients-of=/": `(?m)^127\.0\.0\.1 +/ +nfs`} {
		if s := top(view); !regexp.MustCompile(want).MatchString(s) {
			t.Errorf("top %s has no %s:\n%s", view, want, s)
		}
	}
	if s := top("--clients-of", "/other"); strings.Contains(s, "127.0.0.1 ") || !strings.Contains(s, "There are no export-clients.") {
		t.Errorf("top --clients-of /other:\n%s", s)
	}
	for _, path := range []string{names.Path, "/api/v1/status"} {
		r, err := http.Get("http://" + admin + path)
		must(t, err)
		b, err := io.ReadAll(r.Body)
		must(t, err)
		r.Body.Close()
		if strings.Contains(string(b), "/data") || path == names.Path && r.StatusCode == http.StatusOK {
			t.Errorf("the admin address has names at %s: %d", path, r.StatusCode)
		}
		if path != names.Path && !json.Valid(b) {
			t.Errorf("%s: %s", path, b)
		}
	}
	// The metrics of an export have what was counted, and end when a reload leaves the export out. Nothing is forgotten.
	exports := func(metric string) (all []string) {
		f := gathered(t, x.b)["rdmabridge_listener_export_"+metric+"_total"]
		for _, m := range f.GetMetric() {
			all = append(all, fmt.Sprintf("%s %s %.0f", m.Label[1].GetValue(), m.Label[0].GetValue(), m.Counter.GetValue()))
		}
		return all
	}
	want := func(metric string, want ...string) {
		t.Helper()
		if got := exports(metric); !slices.Equal(got, want) {
			t.Errorf("%s of exports: %q, want %q", metric, got, want)
		}
	}
	want("read_bytes", fmt.Sprintf("nfs / %d", 2*size))
	want("written_bytes", fmt.Sprintf("nfs / %d", size))
	if len(exports("calls")) != 1 {
		t.Errorf("Calls of exports: %q", exports("calls"))
	}
	x.reload(text+"names: {sample: 100%, mode: on, metrics: [/other]}\n", `"setting":"names.metrics"`)
	want("read_bytes")
	if s := top("--files"); !strings.Contains(s, "/data") {
		t.Errorf("other metrics, and top has forgotten:\n%s", s)
	}
	x.reload(text+"names: {sample: 100%, mode: on, metrics: [/]}\n", `"setting":"names.metrics"`)
	if out, err := exec.Command("nfs-cp", url, local+"4").CombinedOutput(); err != nil {
		t.Fatalf("nfs-cp: %v: %s", err, out)
	}
	testkit.Eventually(t, "the export is counted again, from 0", func() bool {
		return slices.Equal(exports("read_bytes"), []string{fmt.Sprintf("nfs / %d", size)})
	})
	// The admin address has names when the file says so, and they are still known then.
	page := func() *status.Names {
		r, err := http.Get("http://" + admin + "/api/v1/status")
		must(t, err)
		defer r.Body.Close()
		var d status.Document
		must(t, json.NewDecoder(r.Body).Decode(&d))
		return d.Names
	}
	x.reload(text+"names: {sample: 100%, mode: on, page: on}\n", `"setting":"names.page","old":"off","new":"on"`)
	testkit.Eventually(t, "names are on the page", func() bool {
		n := page()
		return n != nil && slices.ContainsFunc(n.Files, func(h status.Hot) bool { return h.Path == "/data" }) && len(n.Exports) == 1
	})
	x.reload(text+"names: {sample: 100%, mode: on}\n", `"setting":"names.page","old":"on","new":"off"`)
	testkit.Eventually(t, "names are not on the page", func() bool { return page() == nil })
	x.reload(text, `"setting":"names.mode","old":"on","new":"off"`)
	want("read_bytes")
	if s := top("--files"); !strings.Contains(s, "This bridge learns no names") {
		t.Errorf("names are off again, and top says\n%s", s)
	}
	if n := x.b.taps.Running(); n != 0 {
		t.Errorf("%d Taps are left", n)
	}
}

// TestNamesHandover: a process that takes over knows the names that the one before it has learned.
func TestNamesHandover(t *testing.T) {
	t.Parallel()
	testkit.Needs(t, "nfs-cp")
	dir := t.TempDir()
	file, sock, addr, local := filepath.Join(dir, "bridge.yaml"), filepath.Join(dir, "c.sock"), testkit.FreeAddr(t), filepath.Join(dir, "data")
	write(t, file, fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: s}]
upstreams: [{name: s, transport: tcp, endpoints: [%q]}]
admin: {address: none}
control: {path: %s}
memory: {budget: 256MiB}
handover: {path: %s/h.sock}
names: {mode: on}
`, addr, startDemoNFS(t, demo.Options{}), sock, dir))
	write(t, local, "some data")
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"message":"connected to upstream"`)
	p.says(`"event":"control_listening"`)
	_, port, err := net.SplitHostPort(addr)
	must(t, err)
	if out, err := exec.Command("nfs-cp", local, fmt.Sprintf("nfs://127.0.0.1//data?nfsport=%s&mountport=%s", port, port)).CombinedOutput(); err != nil {
		t.Fatalf("nfs-cp: %v: %s", err, out)
	}
	known := func() (n status.Names) {
		c := control.NewClient(sock)
		defer c.Close()
		must(t, c.Get(t.Context(), names.Path, &n))
		return n
	}
	before := known()
	if before.Known < 2 || len(before.Files) == 0 {
		t.Fatalf("%+v", before)
	}
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"take-over complete"`)
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	if after := known(); after.Known != before.Known || len(after.Files) != 0 {
		t.Errorf("%d names were known, and are %d in the process that has taken over: %+v", before.Known, after.Known, after)
	}
	syscall.Kill(successorPID(t, log), syscall.SIGTERM)
}
