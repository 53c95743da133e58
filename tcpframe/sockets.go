package tcpframe

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Sockets counts the sockets of clients that the process has open, of all listeners together and
// of every transport: each takes a descriptor, and the process must keep some for other things.
// It is safe for concurrent use.
type Sockets struct {
	most, open atomic.Int64
}

// SetLimit makes n the most sockets from now on. Sockets beyond it stay.
func (s *Sockets) SetLimit(n int) { s.most.Store(int64(n)) }

// Limit returns the most sockets.
func (s *Sockets) Limit() int { return int(s.most.Load()) }

// Open returns how many sockets are counted.
func (s *Sockets) Open() int { return int(s.open.Load()) }

// Take counts a socket. It reports false when there are as many as there may be. A socket that
// replaces another one, which is being closed, is always counted.
func (s *Sockets) Take(replaces bool) bool {
	if s.open.Add(1) <= s.most.Load() || replaces {
		return true
	}
	s.open.Add(-1)
	return false
}

// Put undoes one Take that reported true.
func (s *Sockets) Put() { s.open.Add(-1) }

// mostSockets returns three quarters of RLIMIT_NOFILE. The rest of the descriptors is for
// upstreams and everything else.
func mostSockets() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 768
	}
	return int(min(r.Cur, 1<<20) / 4 * 3)
}
