package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/control"
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

// TestControlHandover: the successor takes the control socket over, and the old process does not
// remove it. A bridge beside it runs without one and says so.
func TestControlHandover(t *testing.T) {
	dir := t.TempDir()
	file, sock := filepath.Join(dir, "rdmabridge.yaml"), filepath.Join(dir, "c.sock")
	write(t, file, fmt.Sprintf("%scontrol: {path: %s}\nhandover: {path: %s/h.sock}\n", minimalConfig, sock, dir))
	log := newLogFile(t)
	one := startProcess(t, log, "serve", "-c", file)
	testkit.Eventually(t, "the first process answers", func() bool { return processAt(t, sock) == one.cmd.Process.Pid })

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
