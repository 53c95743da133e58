//go:build lab

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestIPVSLab has two active bridges behind a real keepalived and IPVS, with source hashing, and Linux's clients of NFSv3,
// NFSv4.1 and NFSv4.2, all in namespaces of one guest, as guest/ipvs.sh says. Bridges are killed, cut off, upgraded and restarted
// one after the other. No operation fails, and none of NFSv4.1 and later is executed twice. make ipvs sets RDMABRIDGE_LAB_IPVS.
func TestIPVSLab(t *testing.T) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" || os.Getenv("RDMABRIDGE_LAB_IPVS") == "" {
		t.Skip("takes minutes: make ipvs")
	}
	keepalived, err := exec.LookPath("keepalived")
	if err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(t.TempDir(), "guest.cpio")
	command(t, 3*time.Minute, "../../deploy/lab/mkinitrd.sh", initrd, keepalived)
	g := newGuest(t, initrd, "--mem", "2048", "--append", "lab.server=1 lab.lease=90")
	g.launch(t)
	config, err := os.ReadFile("../../deploy/keepalived/ipvs.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "ipvs.conf"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	g.put(t, bridgeBinary(t), "rdmabridge")
	g.ready(t)

	out := g.job(t, 12*time.Minute, "VERSIONS='4.2 4.1 3 4.2' /lab/ipvs.sh")
	t.Logf("\n%s", out)
	for line := range strings.Lines(out) {
		client, counts, ok := strings.Cut(line, ": ")
		if !ok || !strings.Contains(counts, " operations, ") {
			continue
		}
		if !strings.Contains(counts, ", 0 failed") || client != "c3" && !strings.Contains(counts, ", 0 told") {
			t.Error(line)
		}
	}
	if strings.Count(out, " operations, ") != 4 || !strings.HasSuffix(strings.TrimSpace(out), "PASS") {
		t.Error("not all clients have told the end")
	}
}
