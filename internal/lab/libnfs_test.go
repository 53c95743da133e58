//go:build lab

package lab

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// testLibNFS tests the client in user space: NFSv3 in both directions, NFSv4 reading. The
// nfs-cp of Debian fails with an NFSv4 destination on every server.
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
	command(t, 3*time.Minute, "nfs-cp", local, v3("big"))
	if out := g.job(t, time.Minute, "sha256sum /export/libnfs/big"); !strings.HasPrefix(out, fmt.Sprintf("%x ", want)) {
		t.Errorf("the server's copy has SHA-256 %s, want %x", out, want)
	}
	for name, url := range map[string]func(string) string{"3": v3, "4": v4} {
		t.Run(name, func(t *testing.T) {
			if got := sha256.Sum256(command(t, 3*time.Minute, "nfs-cat", url("big"))); got != want {
				t.Errorf("nfs-cat: SHA-256 %x, want %x", got, want)
			}
			copied := filepath.Join(t.TempDir(), "copied")
			command(t, 3*time.Minute, "nfs-cp", url("small"), copied)
			if got, err := os.ReadFile(copied); err != nil || string(got) != "small\n" {
				t.Errorf("nfs-cp: %q, %v", got, err)
			}
			names := string(command(t, time.Minute, "nfs-ls", url("")))
			for _, want := range []string{`(?m)^-.* 67108864 big$`, `(?m)^-.* 6 small$`, `(?m)^d.* sub$`} {
				if !regexp.MustCompile(want).MatchString(names) {
					t.Errorf("nfs-ls: no line %s in\n%s", want, names)
				}
			}
		})
	}
	g.job(t, 30*time.Second, "rm -r /export/libnfs")
}
