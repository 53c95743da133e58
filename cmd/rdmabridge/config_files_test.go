package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestConfigFiles: a restricted process reads all files of a directory again, links to elsewhere and new ones
// included, and says where each value is from.
func TestConfigFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"conf.d", "secrets", "run"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	conf := filepath.Join(dir, "conf.d")
	write(t, filepath.Join(dir, "rdmabridge.yaml"), strings.TrimPrefix(minimalConfig, "\n"))
	write(t, filepath.Join(conf, "10-site.yaml"), "control: {path: \"${RUN}/c.sock\"}\nmemory: {budget: 200MiB}\nreload: {watch: none}\n")
	write(t, filepath.Join(dir, "secrets", "identity"), "identity: very-secret-text\ndrain: {timeout: 20s}\n")
	must(t, os.Symlink("../secrets/identity", filepath.Join(conf, "20-identity.yaml")))
	t.Setenv("RUN", filepath.Join(dir, "run"))
	t.Setenv("RDMABRIDGE_LOG_LEVEL", "debug")
	sock := filepath.Join(dir, "run", "c.sock")
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "--admin-address", "none", "-c", filepath.Join(dir, "rdmabridge.yaml"), "-c", conf)
	awaitControl(t, sock, p.cmd.Process.Pid)

	code, out, errOut := run("config", "print", "--socket", sock)
	for _, want := range []string{"level: debug # RDMABRIDGE_LOG_LEVEL", "address: none # --admin-address", "budget: 200MiB # " + conf + "/10-site.yaml:2", "timeout: 20s # " + conf + "/20-identity.yaml:2", "rdmabridge.yaml, " + conf + ".\n"} {
		if code != cli.ExitDone || !strings.Contains(out, want) {
			t.Errorf("%d: %q is not said: %s%s", code, want, out, errOut)
		}
	}

	write(t, filepath.Join(dir, "secrets", "identity"), "identity: very-secret-text\ndrain: {timeout: 30s}\n")
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"setting":"drain.timeout","old":"20s","new":"30s"`)
	write(t, filepath.Join(conf, "30-more.yaml"), fmt.Sprintf("listeners: [{name: two, address: %q, upstream: storage}]\nlog: {level: error}\n", testkit.FreeAddr(t)))
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"setting":"listeners[two]"`)
	write(t, filepath.Join(conf, "40-bad.yaml"), "listeners: [{name: two, address: ':1', upstream: storage}]\n")
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(conf + "/40-bad.yaml:1: listeners[2].name: listeners[1] in " + conf + "/30-more.yaml:1 has the name two too; write another name")
	must(t, os.Remove(filepath.Join(conf, "40-bad.yaml")))
	must(t, os.Remove(filepath.Join(conf, "30-more.yaml")))
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"event":"reload_applied"`)
	if strings.Contains(log.String(), "admin.address") {
		t.Errorf("a reload forgets a flag:\n%s", log)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.exit(); err != nil {
		t.Error(err)
	}
}

// TestWatcherDirectory: a file that is added to a directory, or removed from it, is a change.
func TestWatcherDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "one")
	w := newWatcher(dir)
	hash := hashFiles([]string{dir})
	for _, change := range []func(){
		func() { write(t, filepath.Join(dir, "b.yaml"), "two") },
		func() { write(t, filepath.Join(dir, "b.yaml"), "three") },
		func() { must(t, os.Remove(filepath.Join(dir, "a.yaml"))) },
	} {
		change()
		if n := looks(w, 4); n != 1 {
			t.Errorf("seen %d times, want once", n)
		}
		if next := hashFiles([]string{dir}); next == hash {
			t.Error("the hash is the same")
		} else {
			hash = next
		}
	}
	write(t, filepath.Join(dir, "README"), "text")
	if n := looks(w, 4); n != 0 || hashFiles([]string{dir}) != hash {
		t.Error("a file that is no configuration is a change")
	}
}

// TestRefusedFiles: the log of serve names the file of each problem.
func TestRefusedFiles(t *testing.T) {
	good, bad := writeFile(t, minimalConfig), writeFile(t, "log:\n\tlevel: info\n")
	code, _, errOut := run("serve", "-c", good, "-c", bad)
	if want := `"event":"config_invalid","file":"` + bad + `","line":2,"setting":"","error":"a tab indents this line; write spaces"`; code != cli.ExitFailed || !strings.Contains(errOut, want) {
		t.Errorf("%d %s, want %s", code, errOut, want)
	}
	for _, args := range [][]string{{"check", "-c", good, "-c", "-"}, {"check", "-c", good, "-c", good + ".not"}} {
		if code, _, errOut := run(args...); code != cli.ExitUsage || !strings.Contains(errOut, "no such file") {
			t.Errorf("%v: %d %s", args, code, errOut)
		}
	}
}
