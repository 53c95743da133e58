package demotest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Libnfs uses a server with the commands of libnfs, as the README shows. The server has
// the directory that GoClient leaves, and no other files. The longest file has largest octets.
func Libnfs(t *testing.T, addr string, largest int) {
	for _, tool := range []string{"nfs-ls", "nfs-cp", "nfs-cat"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("RDMABRIDGE_LAB") == "1" {
				t.Fatalf("%v, and RDMABRIDGE_LAB=1 says it is there", err)
			}
			t.Skipf("%v: install libnfs-utils", err)
		}
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	url := func(path string) string {
		return fmt.Sprintf("nfs://%s/%s?nfsport=%s&mountport=%s", host, path, port, port)
	}
	sizes := []int{0, 1, 3, 4095, 4096, 65537, largest}
	dir := t.TempDir()
	rng := rand.NewChaCha8([32]byte{2})
	for _, size := range sizes {
		data := make([]byte, size)
		_, _ = rng.Read(data) // never fails
		name := fmt.Sprintf("file-%d", size)
		copyBothWays(t, url("/"+name), filepath.Join(dir, name), data)
	}
	checkListing(t, string(run(t, "nfs-ls", "-R", url(""))), sizes)
}

// copyBothWays copies data to url with nfs-cp, and reads them back with nfs-cat and
// nfs-cp. local is a path for a temporary file.
func copyBothWays(t *testing.T, url, local string, data []byte) {
	t.Helper()
	want := sha256.Sum256(data)
	back := local + "-back"
	if err := os.WriteFile(local, data, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "nfs-cp", local, url)
	if got := sha256.Sum256(run(t, "nfs-cat", url)); got != want {
		t.Errorf("nfs-cat %s: SHA-256 %x, want %x", url, got, want)
	}
	run(t, "nfs-cp", url, back)
	copied, err := os.ReadFile(back)
	if err != nil {
		t.Fatal(err)
	}
	if got := sha256.Sum256(copied); got != want {
		t.Errorf("nfs-cp %s: SHA-256 %x, want %x", url, got, want)
	}
}

// checkListing checks that nfs-ls lists a file of each size, and one directory, go.
func checkListing(t *testing.T, listing string, sizes []int) {
	t.Helper()
	for _, size := range sizes {
		if want := fmt.Sprintf(" %d file-%d\n", size, size); !strings.Contains(squeeze(listing), want) {
			t.Errorf("nfs-ls lacks %q:\n%s", want, listing)
		}
	}
	for line := range strings.Lines(listing) {
		if isDir := strings.HasPrefix(line, "d"); isDir != (strings.HasSuffix(line, " go\n") || strings.HasSuffix(line, "/go\n")) {
			t.Errorf("nfs-ls: %q takes a file for a directory or a directory for a file", line)
		}
	}
}

// run runs a command and returns its standard output.
func run(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return out.Bytes()
}

// squeeze replaces every run of spaces in a line by one space.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}
