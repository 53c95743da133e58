package bench

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func pid() int { return os.Getpid() }

func TestProcessCPU(t *testing.T) {
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
	}
	clock, err := processCPU(pid())
	if err != nil {
		t.Fatal(err)
	}
	stat, err := statCPU(pid())
	if err != nil {
		t.Fatal(err)
	}
	if d := stat - clock; clock <= 0 || d < -100*time.Millisecond || d > 100*time.Millisecond {
		t.Errorf("CPU clock %v, /proc/PID/stat %v", clock, stat)
	}
	for _, p := range []int{0, -1, 1 << 30, maxPID} {
		if d, err := processCPU(p); err == nil {
			t.Errorf("process %d has used %v", p, d)
		}
	}
}

func TestFamily(t *testing.T) {
	child := exec.Command("sleep", "10")
	if err := child.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait() // it was killed
	}()
	f := Processes{pid(), pid()}.Family()
	if f[0] != pid() || !slices.Contains(f, child.Process.Pid) || slices.Contains(f[1:], pid()) {
		t.Errorf("family of %d with child %d: %v", pid(), child.Process.Pid, f)
	}
}
