package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/action"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// processAt returns the process that answers at the control socket path.
func processAt(t *testing.T, path string) int {
	var d status.Document
	c := control.NewClient(path)
	defer c.Close()
	if err := c.Get(t.Context(), "/api/v1/status", &d); err != nil {
		return 0
	}
	return d.Process
}

// awaitControl waits until the bridge of a process answers at the control socket path. It listens there after its clients can
// connect.
func awaitControl(t *testing.T, path string, process int) {
	t.Helper()
	testkit.Eventually(t, "the control socket answers", func() bool { return processAt(t, path) == process })
}

// TestControlHandover: the successor takes the control socket over, and the old process does not
// remove it. A bridge beside it runs without one and says so.
func TestControlHandover(t *testing.T) {
	dir := t.TempDir()
	file, sock := filepath.Join(dir, "rdmabridge.yaml"), filepath.Join(dir, "c.sock")
	write(t, file, fmt.Sprintf("%scontrol: {path: %s}\nhandover: {path: %s/h.sock}\n", minimalConfig, sock, dir))
	log := newLogFile(t)
	one := startProcess(t, log, "serve", "-c", file)
	awaitControl(t, sock, one.cmd.Process.Pid)

	beside := filepath.Join(dir, "beside.yaml")
	write(t, beside, fmt.Sprintf("%scontrol: {path: %s}\n", minimalConfig, sock))
	other := startProcess(t, log, "serve", "-c", beside)
	other.says(fmt.Sprintf(`"event":"control_off","path":%q,"other_pid":%d`, sock, one.cmd.Process.Pid))
	_ = other.cmd.Process.Signal(syscall.SIGTERM)
	if err := other.exit(); err != nil {
		t.Errorf("the bridge beside: %v", err)
	}

	two := startProcess(t, log, "serve", "-c", file, "--takeover")
	if err := one.exit(); err != nil {
		t.Errorf("the first process: %v", err)
	}
	if got := processAt(t, sock); got != two.cmd.Process.Pid {
		t.Errorf("process %d answers after the hand-over, want %d", got, two.cmd.Process.Pid)
	}
	_ = two.cmd.Process.Signal(syscall.SIGTERM)
	if err := two.exit(); err != nil {
		t.Errorf("the second process: %v", err)
	}
	if _, err := os.Lstat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if strings.Count(log.String(), `"event":"control_listening"`) != 2 {
		t.Error("not exactly two processes listened")
	}
}

// startControlled starts a bridge with a control socket, and returns the flag that names it.
func startControlled(t *testing.T) (b *bridge, socket string, wait func() error) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "c.sock")
	c, err := configs.Load([]byte(fmt.Sprintf("%scontrol: {path: %s}\n", controlledConfig, sock)), known)
	if err != nil {
		t.Fatal(err)
	}
	sink := logsink.New(io.Discard, translate.Log(c.Log))
	signals, started, ended := make(chan os.Signal, 2), make(chan *bridge, 1), make(chan error, 1)
	go func() {
		ended <- service{config: c, log: sink.Logger(), sink: sink, signals: signals, started: func(b *bridge) error { started <- b; return nil }}.run()
	}()
	select {
	case b = <-started:
	case err := <-ended:
		t.Fatalf("serve: %v", err)
	}
	wait = sync.OnceValue(func() error { return <-ended })
	t.Cleanup(func() {
		signals <- syscall.SIGTERM
		_ = wait()
	})
	awaitControl(t, sock, os.Getpid())
	return b, "--socket=" + sock, wait
}

// controlledConfig is minimalConfig with an upstream of two endpoints.
const controlledConfig = `
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: storage, routes: [{program: mount, upstream: two}]}]
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:1"]}
  - {name: two, transport: tcp, endpoints: ["127.0.0.1:1", "127.0.0.1:2"], failover: on}
admin: {address: 127.0.0.1:0}
`

// run runs a command line, and returns its exit code and what it prints.
func run(args ...string) (code int, out, errOut string) {
	var o, e strings.Builder
	code = execute(args, &o, &e)
	return code, o.String(), e.String()
}

// TestCommands asks a bridge without load, in each way that there is.
func TestCommands(t *testing.T) {
	b, socket, wait := startControlled(t)
	// Nothing listens at the endpoints of two. While one fails and the other has not been tried yet, the other cannot be
	// ejected.
	testkit.Eventually(t, "both endpoints of two have failed", func() bool {
		_, body := get(t, "http://"+b.admin.Addr()+"/api/v1/upstreams")
		var all []status.Upstream
		must(t, json.Unmarshal([]byte(body), &all))
		return !slices.ContainsFunc(all[1].Endpoints, func(e status.Endpoint) bool { return e.State != status.EndpointEjected })
	})
	for _, tt := range []struct {
		args []string
		code int
		want string // in the output, or in the errors if code is not 0
	}{
		{[]string{"stats"}, cli.ExitDone, "storage down"},
		{[]string{"stats", "--over", "0"}, cli.ExitDone, "since the start"},
		{[]string{"stats", "--json"}, cli.ExitDone, `"process": ` + fmt.Sprint(os.Getpid())},
		{[]string{"stats", "--over", "-1s"}, cli.ExitUsage, "out of range"},
		{[]string{"clients", "--over", "10ms"}, cli.ExitDone, "ADDRESS"},
		{[]string{"clients", "--hosts", "--over", "10ms"}, cli.ExitDone, "HOST"},
		{[]string{"clients", "--json", "--sort", "bytes", "--filter", "10.0.0.0/8"}, cli.ExitDone, `"sort": "bytes"`},
		{[]string{"clients", "--sort", "height"}, cli.ExitUsage, "write waiting, bytes, oldest, calls, address"},
		{[]string{"clients", "-n", "-1"}, cli.ExitUsage, "write a number, or 0 for all"},
		{[]string{"clients", "--legend"}, cli.ExitDone, "WAITS-FOR  why the bridge does not read"},
		{[]string{"upstreams", "--over", "10ms"}, cli.ExitDone, "storage  tcp sessions down"},
		{[]string{"upstreams", "--connections", "--over", "10ms"}, cli.ExitDone, "127.0.0.1:1"},
		{[]string{"upstreams", "--endpoints", "--over", "0"}, cli.ExitDone, "BACK-IN"},
		{[]string{"upstreams", "--json"}, cli.ExitDone, `"name": "storage"`},
		{[]string{"upstreams", "--sort", "height"}, cli.ExitUsage, "write upstream, transport"},
		{[]string{"upstreams", "--legend", "--endpoints"}, cli.ExitDone, "how often it was ejected"},
		{[]string{"top", "-d", "100ms"}, cli.ExitDone, "There are no clients."},
		{[]string{"top", "--once", "-d", "100ms", "--view", "upstreams", "--sort", "server"}, cli.ExitDone, "storage"},
		{[]string{"top", "--view", "x"}, cli.ExitUsage, "write clients, operations, connections, upstreams, links, events"},
		{[]string{"top", "--sort", "x"}, cli.ExitUsage, "write address"},
		{[]string{"top", "-d", "1us"}, cli.ExitUsage, "write a time from 100ms to 1h"},
		{[]string{"log-level"}, cli.ExitDone, "the level of the log is info, as configured\n"},
		{[]string{"log-level", "DEBUG", "--for", "1m"}, cli.ExitDone, "the level of the log is debug until 2"},
		{[]string{"log-level", "configured"}, cli.ExitDone, "the level of the log is info, as configured\n"},
		{[]string{"log-level", "loud"}, cli.ExitFailed, `"loud" is no level; write debug, info, warn, error`},
		{[]string{"log-level", "info", "--for", "-1s"}, cli.ExitUsage, "out of range"},
		{[]string{"eject", "storage"}, cli.ExitUsage, "ENDPOINT is missing: rdmabridge eject UPSTREAM ENDPOINT"},
		{[]string{"eject", "a", "b", "c"}, cli.ExitUsage, `"c" is too much`},
		{[]string{"disconnect"}, cli.ExitUsage, "CLIENT is missing"},
		{[]string{"eject", "storage", "127.0.0.1:1"}, cli.ExitFailed, "has no other endpoint"},
		{[]string{"eject", "stoarge", "127.0.0.1:1"}, cli.ExitFailed, "there are storage, two"},
		{[]string{"eject", "two", "127.0.0.1:7"}, cli.ExitFailed, "its endpoints: 127.0.0.1:1"},
		{[]string{"eject", "two", "127.0.0.1:2", "--for", "1m"}, cli.ExitDone, "upstream two does not use endpoint 127.0.0.1:2 until 2"},
		{[]string{"return", "two", "127.0.0.1:2"}, cli.ExitDone, "upstream two uses endpoint 127.0.0.1:2 again"},
		{[]string{"return", "two", "127.0.0.1:9"}, cli.ExitFailed, "its endpoints: 127.0.0.1:1"},
		{[]string{"disconnect", "somebody"}, cli.ExitFailed, `"somebody" is no address`},
		{[]string{"disconnect", "10.0.0.0/8"}, cli.ExitFailed, "no client is connected from 10.0.0.0/8"},
		{[]string{"capture", "-w", "-", "--listener", "nobody", "--duration", "10ms"}, cli.ExitFailed, `--listener: the bridge has no listener "nobody"; write nfs`},
		{[]string{"capture", "-w", "-", "--upstream", "stoarge", "--duration", "10ms"}, cli.ExitFailed, `--upstream: the bridge has no upstream "stoarge"; write storage or two`},
		{[]string{"capture", "-w", "/srv/none/x.pcapng", "--duration", "10ms"}, cli.ExitFailed, "there is no directory /srv/none; make it, or name another file"},
	} {
		code, out, errOut := run(append(tt.args, socket)...)
		got := out
		if tt.code != cli.ExitDone {
			got = errOut
			clitest.Helps(t, tt.args, errOut)
		}
		if code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("%v: code %d, want %d and %q\n%s%s", tt.args, code, tt.code, tt.want, out, errOut)
		}
	}
	if code, out, errOut := run("drain", socket); code != cli.ExitDone || !strings.Contains(out, "the bridge drains: it listens no more, answers the 0 Calls of 0 clients, and ends, in 30s at the latest") {
		t.Errorf("drain: %d %s%s", code, out, errOut)
	}
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if code, _, errOut := run("stats", socket); code != cli.ExitUsage || !strings.Contains(errOut, "no bridge listens at") {
		t.Errorf("after the end: %d %s", code, errOut)
	}
	if code, _, errOut := run("stats", socket, "-c", "x"); code != cli.ExitUsage || !strings.Contains(errOut, "--socket and --config exclude each other; write one of them") {
		t.Errorf("two bridges: %d %s", code, errOut)
	}
}

// TestCommandsByFile: -c finds the socket of the file, or says why there is none.
func TestCommandsByFile(t *testing.T) {
	_, socket, _ := startControlled(t)
	file := writeFile(t, minimalConfig+"control: {path: "+strings.TrimPrefix(socket, "--socket=")+"}\n")
	if code, out, errOut := run("stats", "-c", file); code != cli.ExitDone || !strings.Contains(out, "storage") {
		t.Errorf("%d %s%s", code, out, errOut)
	}
	// The file has problems, which is when somebody asks.
	for _, problem := range []string{"nothing: 1\n", "tls: {handshakes: many}\n", "loops: ${NOT_SET_ANYWHERE}\n", "tenants: [{name: a, name: b}]\n"} {
		file := writeFile(t, minimalConfig+"control: {path: "+strings.TrimPrefix(socket, "--socket=")+"}\n"+problem)
		if code, out, errOut := run("stats", "-c", file); code != cli.ExitDone || !strings.Contains(out, "started 2") || !strings.Contains(out, " without a configuration file") {
			t.Errorf("%s: %d %s%s", problem, code, out, errOut)
		}
	}
	if code, _, errOut := run("stats", "-c", file+".not"); code != cli.ExitUsage || !strings.Contains(errOut, "no such file") {
		t.Errorf("no file: %d %s", code, errOut)
	}
	none := writeFile(t, minimalConfig+"control: {path: none}\n")
	if code, _, errOut := run("stats", "-c", none); code != cli.ExitUsage || !strings.Contains(errOut, "its bridge cannot be asked") {
		t.Errorf("no socket: %d %s", code, errOut)
	}
}

// TestActionsOverHTTP: the admin address has no actions, and a request of the socket that makes no sense
// is answered.
func TestActionsOverHTTP(t *testing.T) {
	b, socket, wait := startControlled(t)
	r, err := http.Post("http://"+b.admin.Addr()+"/api/v1/actions/drain", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode/100 != 4 {
		t.Errorf("drain at the admin address: %s", r.Status)
	}
	c := control.NewClient(strings.TrimPrefix(socket, "--socket="))
	defer c.Close()
	for _, body := range []any{nil, 7, []int{1}, map[string]int{"wrong": 1}, map[string]any{"level": "debug", "for": -1}, map[string]any{"level": "debug", "for": 1e300}, map[string]any{"level": "debug"}} {
		for _, name := range []string{"drain", "eject", "return", "disconnect", "log-level"} {
			if _, members := body.(map[string]any); name == "drain" && (body == nil || members) || name == "log-level" && body == nil {
				continue // these make sense
			}
			var answer action.Answer
			err := c.Post(t.Context(), action.Path+name, body, &answer)
			var refused *control.AnswerError
			if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest {
				t.Errorf("%s %v: %+v, %v", name, body, answer, err)
			}
		}
	}
	if code, _, errOut := run("drain", socket); code != cli.ExitDone {
		t.Errorf("drain: %s", errOut)
	}
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestActionIsLogged: the log says who asked for what.
func TestActionIsLogged(t *testing.T) {
	dir := t.TempDir()
	file, sock := filepath.Join(dir, "rdmabridge.yaml"), filepath.Join(dir, "c.sock")
	write(t, file, fmt.Sprintf("%scontrol: {path: %s}\n", minimalConfig, sock))
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	awaitControl(t, sock, p.cmd.Process.Pid)
	if code, _, errOut := run("drain", "--wait", "--socket", sock); code != cli.ExitDone {
		t.Errorf("drain: %d %s", code, errOut)
	}
	if err := p.exit(); err != nil {
		t.Error(err)
	}
	p.says(fmt.Sprintf(`"action":"drain","uid":%d,"by_pid":%d`, os.Getuid(), os.Getpid()))
	p.says(`"event":"drain_begun","reason":"operator"`)
}

// TestCompletion: what a shell offers.
func TestCompletion(t *testing.T) {
	_, socket, _ := startControlled(t)
	for _, tt := range []struct{ args, want string }{
		{"log-level|", "configured\tthe level of the configuration\ndebug\ninfo\nwarn\nerror\n:4"},
		{"clients|--sort|", "waiting\nbytes\noldest\ncalls\naddress\n:4"},
		{"top|--view|", "clients\noperations\nconnections\nupstreams\nlinks\nevents\nexports\nfiles\nexport-clients\n:4"},
		{"eject|" + socket + "|", "storage\tdown\ntwo\tdown\n:4"},
		{"eject|" + socket + "|storage|", "127.0.0.1:1\t"},
		{"eject|" + socket + "|storage|x|", ":4"},
		{"disconnect|" + socket + "|", ":4"},
		{"eject|--socket=/nowhere|", ":4"},
		{"dr", "drain\tLet a running bridge"},
	} {
		code, out, errOut := run(append([]string{"__complete"}, strings.Split(tt.args, "|")...)...)
		if code != cli.ExitDone || !strings.HasPrefix(out, tt.want) {
			t.Errorf("%s: %d %q %s, want %q", tt.args, code, out, errOut, tt.want)
		}
	}
}

// TestCompletionScripts: the shells accept what completion prints for them.
func TestCompletionScripts(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"}} {
		code, out, errOut := run("completion", shell)
		if code != cli.ExitDone || !strings.Contains(out, "__complete") {
			t.Errorf("%s: %d %s", shell, code, errOut)
		}
		if _, err := exec.LookPath(check[0]); err != nil {
			t.Logf("%s is not installed: its syntax is not checked", shell)
			continue
		}
		cmd := exec.Command(check[0], check[1:]...)
		cmd.Stdin = strings.NewReader(out)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, b)
		}
	}
}
