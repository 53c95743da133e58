package tcpframe

// A share is what a socket moves in one pass of its loop, in octets; the others wait
// that long. To read 256 KiB takes about 50 us, to write 512 KiB some 200 us, and more
// where what is written has to be made first.
type share struct {
	get int // by Socket.Read, beyond what came with Received
	put int // by Socket.Writev
}

var (
	// few is for a loop with few busy sockets. A peer that reads as fast as we write
	// would take megabytes in one pass.
	few = share{get: 256 << 10, put: 512 << 10}
	// many is for a crowd. One connection with megabytes under way pays up to a fifth
	// of its throughput for the smaller pieces; of 31 clients with small Calls, the
	// p99 beside one such was half as long.
	many = share{get: 64 << 10, put: 128 << 10}
)

// crowd is how many sockets are busy at most for few to be right.
const crowd = 8

// shareSlack is by how much share.get may be exceeded rather than leave a crumb.
const shareSlack = 16 << 10

// heard counts s among the busy sockets of this time between sweeps: those that have
// received anything.
func (l *Loop) heard(s *socket) {
	if s.heard == l.sweeps {
		return
	}
	s.heard = l.sweeps
	if l.busy++; l.busy > crowd {
		l.share = many
	}
}

// apportion begins another time between sweeps, in which a crowd is taken for granted
// if there was one before.
func (l *Loop) apportion() {
	if l.busy <= crowd {
		l.share = few
	}
	l.sweeps++
	l.busy = 0
}
