package admit

import (
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

const (
	// slowPace is how many octets a second a client has to send of its incomplete Calls while
	// other clients wait for memory.
	slowPace = 128 << 10
	// slowLooks is how many looks in a row, half a second apart, must find a client slow.
	slowLooks = 2
	// slowTicks is how many ticks of memory pass between two looks at the clients that send.
	slowTicks = 5
	// memoryTick is how often Memory looks at the line. It also looks whenever memory was released.
	memoryTick = 100 * time.Millisecond
)

// A Sending is what a client sends now, as slowSenders sees it.
type Sending struct {
	Held   int64  // octets of memory that incomplete Calls hold
	Octets int64  // octets of Calls received so far, on the whole connection
	Calls  uint64 // Calls received so far, if a client that sends Calls one after the other is not slow
	Ready  bool   // the bridge waits for octets of the client
}

// A sendingLook is what slowSenders saw of a client when it looked last.
type sendingLook struct {
	Sending
	round int
	slow  int // looks in a row that found the client slow
}

// see reports how many octets of memory the client holds, if it is slow, and otherwise 0.
func (l *sendingLook) see(round int, now Sending) int64 {
	was := *l
	l.Sending, l.round, l.slow = now, round, 0
	if was.round != round-1 || now.Held == 0 || was.Held == 0 || !now.Ready || !was.Ready ||
		now.Calls != was.Calls || now.Octets-was.Octets >= int64(slowPace*slowTicks*memoryTick/time.Second) {
		return 0
	}
	if l.slow = was.slow + 1; l.slow < slowLooks {
		return 0
	}
	return now.Held
}

// A memoryWaiter is a client connection in the line of Memory.
type memoryWaiter struct {
	conn gates.Conn
	s    *senderState
	host *Host
	size int64
	call func()
	tick int // value of Memory.tick when it began to wait
}

// A senderState is what Memory and slowSenders keep of a client connection that has held more than
// a small block, or has waited.
type senderState struct {
	unproven [blockKinds]int64 // octets that Memory.unproven counts for it; its loop's
	look     sendingLook       // its loop's
	noBlock  bool              // the rules permitted its latest lease, and there was no such block; its loop's
	turn     int64             // octets that are kept for it; guarded by Memory.mu, as the next
	stranger bool              // Memory.unproven counts turn
}
