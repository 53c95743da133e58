// Package unixsocket is a listening Unix socket that only the user of this process can connect to, and root. A process
// that starts puts its socket in the place of its predecessor's without a gap. Each side of a connection can ask who is
// at the other end.
package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A Listener listens at a path of the file system.
type Listener struct {
	*net.UnixListener
	path string
	ino  uint64 // the inode of the socket that this process put at path
}

// Listen listens at path. It replaces a socket that is there already.
func Listen(path string) (*Listener, error) {
	// The socket gets its mode under another name, so that nobody finds it with the mode of the umask,
	// and rename replaces the socket that is there without a gap.
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // Unlink removes path, the name that the socket gets here
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path)); err != nil {
		_ = os.Remove(temporary)
		_ = ln.Close()
		return nil, err
	}
	return &Listener{UnixListener: ln, path: path, ino: inode(path)}, nil
}

// Unlink removes the path, unless another process has put its socket there.
func (l *Listener) Unlink() {
	if inode(l.path) == l.ino {
		_ = os.Remove(l.path)
	}
}

// inode returns the inode of what is at path, 0 for nothing.
func inode(path string) uint64 {
	var st unix.Stat_t
	_ = unix.Lstat(path, &st) // leaves 0
	return st.Ino
}
