package unixsocket

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A Peer is the process at the other end of a connection.
type Peer struct {
	PID int // 0 for a process in another PID name space
	UID int
}

// PeerOf returns the process at the other end of c, as the kernel knows it (SO_PEERCRED).
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) { cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, optErr); err != nil {
		return Peer{}, err
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// Trusted reports whether p runs as the user of this process, or as root.
func (p Peer) Trusted() bool { return p.UID == os.Geteuid() || p.UID == 0 }
