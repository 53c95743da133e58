package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestListen: a second Listener takes the place of the first without a gap, and only the second removes it.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	first.Unlink()
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("the socket: %v, %v", info, err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := PeerOf(c); err != nil || p != (Peer{PID: os.Getpid(), UID: os.Getuid()}) || !p.Trusted() {
		t.Errorf("the peer is %+v, %v", p, err)
	}
	if (Peer{UID: os.Getuid() + 1}).Trusted() {
		t.Error("another user is trusted")
	}
	second.Close()
	second.Unlink()
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
