// Package demotest has the NFS clients with which the demo and bridges are tested.
package demotest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/willscott/go-nfs-client/nfs"
	"github.com/willscott/go-nfs-client/nfs/rpc"
)

// GoClient drives an empty NFSv3 server with a client in Go, and leaves it
// with a few files more.
func GoClient(t *testing.T, addr string, entries int) {
	// The library picks its own port at random, which may be somebody's.
	c, err := rpc.DialTCP("tcp", addr, false)
	for range 20 {
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		c, err = rpc.DialTCP("tcp", addr, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mounter := nfs.Mount{Client: c}
	v, err := mounter.Mount("/", rpc.NewAuthUnix("demo", 1000, 1000).Auth())
	if err != nil {
		t.Fatal(err)
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err = v.Mkdir("/go", 0o755)
	must("mkdir", err)
	if _, err := v.Mkdir("/go", 0o755); !os.IsExist(err) {
		t.Errorf("second mkdir: %v, want exist", err)
	}
	rng := rand.NewChaCha8([32]byte{1})
	// The sizes around the roundup, the inline threshold, and one beyond rsize.
	for _, size := range []int{0, 1, 2, 3, 4, 5, 1000, 3900, 4095, 4096, 4097, 65537, 1<<20 - 1, 3<<20 + 1} {
		want := make([]byte, size)
		_, _ = rng.Read(want) // never fails
		name := fmt.Sprintf("/go/%d", size)
		f, err := v.OpenFile(name, 0o640)
		must("create "+name, err)
		for rest := want; len(rest) > 0; { // in WRITEs of at most 1 MiB
			n := min(len(rest), 1<<20)
			_, err := f.Write(rest[:n])
			must("write "+name, err)
			rest = rest[n:]
		}
		must("commit "+name, f.Close())
		a, err := v.Getattr(name)
		must("getattr "+name, err)
		if a.Size() != int64(size) || a.Mode().Perm() != 0o640 {
			t.Errorf("%s: size %d mode %v", name, a.Size(), a.Mode())
		}
		got := make([]byte, 0, size)
		for buf := make([]byte, 1<<20); len(got) < size; {
			n, err := f.ReadAt(buf, int64(len(got)))
			if err != nil && err != io.EOF {
				t.Fatalf("read %s: %v", name, err)
			}
			if n == 0 {
				break
			}
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: read back %d octets that differ", name, len(got))
		}
	}
	must("rename", v.Rename("/go/4096", "/go/renamed"))
	if _, err := v.Getattr("/go/4096"); !os.IsNotExist(err) {
		t.Errorf("the old name: %v, want not exist", err)
	}
	must("remove", v.Remove("/go/renamed"))
	must("symlink", v.Symlink("65537", "/go/link"))
	l, err := v.Open("/go/link")
	must("open link", err)
	if target, err := l.Readlink(); err != nil || target != "65537" {
		t.Errorf("readlink: %q, %v", target, err)
	}
	must("setattr", v.Setattr("/go/65537", nfs.Sattr3{
		Mode: nfs.SetMode{SetIt: true, Mode: 0o600}, Size: nfs.SetSize{SetIt: true, Size: 100},
	}))
	if a, err := v.Getattr("/go/65537"); err != nil || a.Size() != 100 || a.Mode().Perm() != 0o600 {
		t.Errorf("after setattr: %v, %v", a, err)
	}

	_, err = v.Mkdir("/many", 0o755)
	must("mkdir", err)
	var want []string
	for i := range entries {
		name := fmt.Sprintf("entry-%04d-%s", i, strings.Repeat("x", i%100))
		_, err := v.Create("/many/"+name, 0o644)
		must("create "+name, err)
		want = append(want, name)
	}
	es, err := v.ReadDirPlus("/many")
	must("readdirplus", err)
	var got []string
	for _, e := range es {
		got = append(got, e.Name())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("readdirplus: %d names, want %d", len(got), len(want))
	}
	must("remove all", v.RemoveAll("/many"))
	if _, err := v.Getattr("/many"); !os.IsNotExist(err) {
		t.Errorf("removed directory: %v, want not exist", err)
	}
	must("unmount", mounter.Unmount())
}

// Libnfs drives the server with libnfs's tools: what README tells people to do.
func Libnfs(t *testing.T, addr string) {
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
	run := func(args ...string) []byte {
		t.Helper()
		var out, errOut bytes.Buffer
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, errOut.String())
		}
		return out.Bytes()
	}
	dir := t.TempDir()
	rng := rand.NewChaCha8([32]byte{2})
	for _, size := range []int{0, 1, 3, 4095, 4096, 65537, 64 << 20} {
		data := make([]byte, size)
		_, _ = rng.Read(data) // never fails
		want := sha256.Sum256(data)
		name := fmt.Sprintf("file-%d", size)
		local, back := filepath.Join(dir, name), filepath.Join(dir, name+"-back")
		if err := os.WriteFile(local, data, 0o600); err != nil {
			t.Fatal(err)
		}
		run("nfs-cp", local, url("/"+name))
		if got := sha256.Sum256(run("nfs-cat", url("/"+name))); got != want {
			t.Errorf("nfs-cat %s: SHA-256 %x, want %x", name, got, want)
		}
		run("nfs-cp", url("/"+name), back)
		copied, err := os.ReadFile(back)
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(copied); got != want {
			t.Errorf("nfs-cp %s: SHA-256 %x, want %x", name, got, want)
		}
	}
	listing := string(run("nfs-ls", "-R", url("")))
	for _, size := range []int{0, 1, 3, 4095, 4096, 65537, 64 << 20} {
		if want := fmt.Sprintf(" %d file-%d\n", size, size); !strings.Contains(squeeze(listing), want) {
			t.Errorf("nfs-ls lacks %q:\n%s", want, listing)
		}
	}
	for line := range strings.Lines(listing) {
		if isDir := strings.HasPrefix(line, "d"); isDir != (strings.HasSuffix(line, " go\n") || strings.HasSuffix(line, "/go\n")) {
			t.Errorf("nfs-ls: %q is wrong about what is a directory", line)
		}
	}
}

// squeeze leaves one space of each run.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}
