package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestConfigPrint: what is printed is the configuration, and the numbers are those that are in force.
func TestConfigPrint(t *testing.T) {
	dir := t.TempDir()
	file, sock := filepath.Join(dir, "rdmabridge.yaml"), filepath.Join(dir, "c.sock")
	text := fmt.Sprintf("%scontrol: {path: %s}\nmemory: {budget: 200MiB}\nlog: {level: warn}\nidentity: very-secret-text\n", minimalConfig, sock)
	write(t, file, text)
	p := startProcess(t, newLogFile(t), "serve", "-c", file)
	awaitControl(t, sock, p.cmd.Process.Pid)

	code, out, errOut := run("config", "print", "--effective", "--socket", sock)
	if code != cli.ExitDone || !strings.HasPrefix(out, fmt.Sprintf("# The configuration in force in process %d, of %s.\n", p.cmd.Process.Pid, file)) {
		t.Fatalf("%d %s%s", code, out, errOut)
	}
	if strings.Contains(out, "very-secret") || !strings.Contains(out, "# The identity is a secret and is not shown: sha256:") {
		t.Error("the identity is printed, or nothing is said of it")
	}
	again, err := configs.Load([]byte(out), known)
	if err != nil {
		t.Fatalf("what is printed is no configuration: %v\n%s", err, out)
	}
	original, err := configs.LoadFile(file, known)
	if err != nil {
		t.Fatal(err)
	}
	again.Identity = original.Identity
	if changes := configs.Diff(original, again); len(changes) > 0 {
		t.Errorf("what is printed is another configuration: %+v", changes)
	}

	code, out, errOut = run("config", "print", "--effective", "--json", "--socket", sock)
	var d configDocument
	if err := json.Unmarshal([]byte(out), &d); code != cli.ExitDone || err != nil {
		t.Fatalf("%d %v %s", code, err, errOut)
	}
	var doc status.Document
	c := control.NewClient(sock)
	defer c.Close()
	if err := c.Get(t.Context(), "/api/v1/status", &doc); err != nil {
		t.Fatal(err)
	}
	accounts := make(map[string]float64)
	for _, a := range doc.Memory.Accounts {
		accounts[a.Name] = float64(a.Limit)
	}
	found := 0
	for _, n := range d.Derived {
		want, ok := map[string]float64{
			"memory for Replies, and for the Receives of upstreams": accounts["replies"],
			"memory for Calls":   accounts["calls"],
			"sockets of clients": float64(doc.Sockets.Limit),
			"unread Replies at which a client is not read from": accounts["replies"] / 8,
		}[n.Name]
		if ok {
			found++
			if n.Value != want {
				t.Errorf("%s: %g, and %g is in force", n.Name, n.Value, want)
			}
		}
		if n.Text == "" || n.Formula == "" || n.Of == "" {
			t.Errorf("%+v lacks something", n)
		}
	}
	if found != 4 {
		t.Errorf("%d of 4 numbers are there", found)
	}

	write(t, file, strings.NewReplacer("200MiB", "300MiB", "level: warn", "level: error").Replace(text)+"# one more\n")
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	testkit.Eventually(t, "the reload is shown", func() bool {
		_, out, _ = run("config", "print", "--socket", sock)
		return strings.Contains(out, "level: error # line")
	})
	if !strings.Contains(out, "budget: 200MiB # still; line 6 has 300MiB, which needs a restart") {
		t.Errorf("what needs a restart is not said:\n%s", out)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.exit(); err != nil {
		t.Error(err)
	}
}

// TestStandardInput: check and config print read standard input.
func TestStandardInput(t *testing.T) {
	for _, tt := range []struct {
		args []string
		text string
		code int
		want string
	}{
		{[]string{"check", "-"}, minimalConfig, cli.ExitDone, "good: 1 listeners"},
		{[]string{"check", "-c", "-"}, "foo: 1\n" + minimalConfig, cli.ExitFailed, "standard input:1: foo: unknown setting"},
		{[]string{"config", "print", "-"}, minimalConfig, cli.ExitDone, "# line 2"},
	} {
		f, err := os.Open(writeFile(t, tt.text))
		if err != nil {
			t.Fatal(err)
		}
		old := os.Stdin
		os.Stdin = f
		code, out, errOut := run(tt.args...)
		os.Stdin = old
		f.Close()
		if code != tt.code || !strings.Contains(out+errOut, tt.want) {
			t.Errorf("%v: %d %s%s", tt.args, code, out, errOut)
		}
	}
}
