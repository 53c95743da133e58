// Package demotest has the NFS clients that test the demo's server and bridges.
package demotest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/willscott/go-nfs-client/nfs"
	"github.com/willscott/go-nfs-client/nfs/rpc"
)

// GoClient uses an empty NFSv3 server with a client in Go. It leaves the directory go
// with files. entries is the length of a directory that it creates and lists.
func GoClient(t *testing.T, addr string, entries int) {
	c := dial(t, addr)
	defer c.Close()
	mounter := nfs.Mount{Client: c}
	v, err := mounter.Mount("/", rpc.NewAuthUnix("demo", 1000, 1000).Auth())
	if err != nil {
		t.Fatal(err)
	}
	g := goClient{t, v}
	_, err = v.Mkdir("/go", 0o755)
	g.must("mkdir", err)
	if _, err := v.Mkdir("/go", 0o755); !os.IsExist(err) {
		t.Errorf("second mkdir: %v, want exist", err)
	}
	rng := rand.NewChaCha8([32]byte{1})
	// The sizes are around the roundup and the inline threshold; one is beyond rsize.
	for _, size := range []int{0, 1, 2, 3, 4, 5, 1000, 3900, 4095, 4096, 4097, 65537, 1<<20 - 1, 3<<20 + 1} {
		data := make([]byte, size)
		_, _ = rng.Read(data) // never fails
		g.file(fmt.Sprintf("/go/%d", size), data)
	}
	g.names()
	g.directory(entries)
	g.must("unmount", mounter.Unmount())
}

// dial connects to addr. The library chooses its own port at random, which another
// socket may use already.
func dial(t *testing.T, addr string) *rpc.Client {
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
	return c
}

// A goClient is a client that has mounted the server's root.
type goClient struct {
	t *testing.T
	v *nfs.Target
}

func (g goClient) must(what string, err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatalf("%s: %v", what, err)
	}
}

// file creates a file, writes data and reads them back.
func (g goClient) file(name string, data []byte) {
	g.t.Helper()
	f, err := g.v.OpenFile(name, 0o640)
	g.must("create "+name, err)
	for rest := data; len(rest) > 0; { // in WRITEs of at most 1 MiB
		n := min(len(rest), 1<<20)
		_, err := f.Write(rest[:n])
		g.must("write "+name, err)
		rest = rest[n:]
	}
	g.must("commit "+name, f.Close())
	a, err := g.v.Getattr(name)
	g.must("getattr "+name, err)
	if a.Size() != int64(len(data)) || a.Mode().Perm() != 0o640 {
		g.t.Errorf("%s: size %d mode %v", name, a.Size(), a.Mode())
	}
	got := make([]byte, 0, len(data))
	for buf := make([]byte, 1<<20); len(got) < len(data); {
		n, err := f.ReadAt(buf, int64(len(got)))
		if err != nil && err != io.EOF {
			g.t.Fatalf("read %s: %v", name, err)
		}
		if n == 0 {
			break
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, data) {
		g.t.Errorf("%s: read back %d octets that differ", name, len(got))
	}
}

// names renames and removes a file, and makes a symbolic link and sets attributes.
func (g goClient) names() {
	g.t.Helper()
	g.must("rename", g.v.Rename("/go/4096", "/go/renamed"))
	if _, err := g.v.Getattr("/go/4096"); !os.IsNotExist(err) {
		g.t.Errorf("the old name: %v, want not exist", err)
	}
	g.must("remove", g.v.Remove("/go/renamed"))
	g.must("symlink", g.v.Symlink("65537", "/go/link"))
	l, err := g.v.Open("/go/link")
	g.must("open link", err)
	if target, err := l.Readlink(); err != nil || target != "65537" {
		g.t.Errorf("readlink: %q, %v", target, err)
	}
	g.must("setattr", g.v.Setattr("/go/65537", nfs.Sattr3{
		Mode: nfs.SetMode{SetIt: true, Mode: 0o600}, Size: nfs.SetSize{SetIt: true, Size: 100},
	}))
	if a, err := g.v.Getattr("/go/65537"); err != nil || a.Size() != 100 || a.Mode().Perm() != 0o600 {
		g.t.Errorf("after setattr: %v, %v", a, err)
	}
}

// directory creates a directory of many entries, lists it and removes it.
func (g goClient) directory(entries int) {
	g.t.Helper()
	_, err := g.v.Mkdir("/many", 0o755)
	g.must("mkdir", err)
	var want []string
	for i := range entries {
		name := fmt.Sprintf("entry-%04d-%s", i, strings.Repeat("x", i%100))
		_, err := g.v.Create("/many/"+name, 0o644)
		g.must("create "+name, err)
		want = append(want, name)
	}
	es, err := g.v.ReadDirPlus("/many")
	g.must("readdirplus", err)
	var got []string
	for _, e := range es {
		got = append(got, e.Name())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		g.t.Errorf("readdirplus: %d names, want %d", len(got), len(want))
	}
	g.must("remove all", g.v.RemoveAll("/many"))
	if _, err := g.v.Getattr("/many"); !os.IsNotExist(err) {
		g.t.Errorf("removed directory: %v, want not exist", err)
	}
}
