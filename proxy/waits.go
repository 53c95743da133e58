package proxy

import (
	"sync/atomic"
	"time"
)

// Why the bridge does not read from a client
//
// A client that is not read from has Calls in its own send buffer, or in the bridge's receive buffer, and
// sees the bridge as slow. So each reason is counted, for the client and for its listener, and the pause
// counts as waiting for admission for the Call that is read next: see front.newCall.

// A waitReason says why the bridge does not read from a client at present. The first are the gateKinds.
type waitReason uint8

const (
	waitCalls    = waitReason(gates) + iota // it has as many Calls under way as it may
	waitReplies                             // it is owed as many octets of Replies as it may be
	waitUnread                              // it does not read the Replies that are queued for it
	waitMemory                              // there is no memory for its Call
	waitDraining                            // its connection is to be closed when no Call is under way
	waitReasons
)

var waitNames = [waitReasons]string{
	"slow_start", "client_rate", "listener_rate", "tenant_address_rate", "tenant_rate", "tenant_address", "tenant", "calls", "replies", "unread", "memory", "draining",
}

const (
	gateBits  = 1<<gates - 1
	frontBits = gateBits | 1<<waitCalls | 1<<waitReplies | 1<<waitDraining // what admit decides
)

// waits say for how long a client was not read from. They belong to the client's loop.
type waits struct {
	now   uint16 // the reasons, a bit for each waitReason
	last  uint16 // the reasons of the latest pause
	since int64  // when now changed, or the pause was counted for the listener: front.tell
	began int64  // when the latest pause began, on the clock of the loops
	ended int64  // when it ended, until a Call has been read; 0 after that
	total int64  // nanoseconds of all pauses that have ended
}

// A waitCounts counts the clients of one listener on one loop that are not read from. now belongs to the
// loop.
type waitCounts struct {
	now    [waitReasons]int
	paused int // clients with at least one reason
	ns     [waitReasons]atomic.Int64
	pauses [waitReasons]atomic.Uint64
}

// wait makes reasons those of mask for which the bridge does not read from the client; it leaves the others.
func (f *front) wait(reasons, mask uint16) {
	if to := f.waits.now&^mask | reasons; to != f.waits.now {
		f.waitFor(to)
	}
}

// waitFor makes to the reasons for which the bridge does not read from the client, which have changed.
func (f *front) waitFor(to uint16) {
	w := &f.waits
	now, n := f.loop.Now(), f.counts.waits
	for r := range waitReasons {
		bit := uint16(1) << r
		switch {
		case w.now&bit != 0:
			n.ns[r].Add(now - w.since)
			if to&bit == 0 {
				n.now[r]--
			}
		case to&bit != 0:
			n.now[r]++
			n.pauses[r].Add(1)
		}
	}
	switch {
	case w.now == 0:
		w.began, w.last = now, 0
		n.paused++
	case to == 0:
		w.ended = now
		w.total += now - w.began
		n.paused--
	}
	w.last |= to
	w.now, w.since = to, now
}

// tell counts the pause that lasts, so far, for the listener. A client may not be read from for hours.
func (f *front) tell() {
	w := &f.waits
	if w.now == 0 {
		return
	}
	now := f.loop.Now()
	for r := range waitReasons {
		if w.now&(1<<r) != 0 {
			f.counts.waits.ns[r].Add(now - w.since)
		}
	}
	w.since = now
}

// soonRead is how soon after a pause a Call must be read to count as having waited for its end.
const soonRead = int64(5 * time.Millisecond)

// readable is when the Call that was just read could have been read at the earliest. If the bridge had
// not read from the client and reads the Call as soon as it does again, that is when the pause began: the
// Call was there then, or has come since, which nothing tells. It is the first Call after the pause alone.
// When the pause was for memory, reading the Call itself had begun, however long the rest of it takes. Other
// Calls of RDMA clients have been read already while they wait: rdmaClient.keep.
func (f *front) readable(now int64) int64 {
	w := &f.waits
	if w.ended == 0 {
		return now
	}
	ended, memory := w.ended, w.last&(1<<waitMemory) != 0
	w.ended = 0
	if memory || now-ended <= soonRead && !f.listener.isRDMA {
		return w.began
	}
	return now
}

// paused is for how long the bridge has not read from the client, in nanoseconds.
func (w *waits) paused(now int64) int64 {
	if w.now == 0 {
		return w.total
	}
	return w.total + now - w.began
}
