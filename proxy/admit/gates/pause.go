package gates

import (
	"sync/atomic"
	"time"
)

// Why the bridge does not read from a client
//
// A client that is not read from has Calls in its own send buffer, or in the bridge's receive buffer, and
// sees the bridge as slow. So each reason is counted, for the client and for its listener, and the pause
// counts as waiting for admission for the Call that is read next: Readable.

// Pauses say for how long a client was not read from. They belong to the client's loop.
type Pauses struct {
	now   uint16 // the reasons, a bit for each Reason
	last  uint16 // the reasons of the latest pause
	since int64  // when now changed, or the pause was counted for the listener: tell
	began int64  // when the latest pause began, on the clock of the loops
	ended int64  // when it ended, until a Call has been read; 0 after that
	sum   int64  // nanoseconds of all pauses that have ended
}

// A PauseCounts counts the clients of one listener on one loop that are not read from. now belongs to the
// loop.
type PauseCounts struct {
	now    [Reasons]int
	paused int // clients with at least one reason
	ns     [Reasons]atomic.Int64
	pauses [Reasons]atomic.Uint64
}

// Differs reports whether reasons are others of mask than those for which the bridge does not read from the client.
func (w *Pauses) Differs(reasons, mask uint16) bool { return (w.now^reasons)&mask != 0 }

// Set makes reasons those of mask for which the bridge does not read from the client from now on; it leaves the others.
// They differ. It counts in n.
func (w *Pauses) Set(reasons, mask uint16, now int64, n *PauseCounts) {
	w.Tell(now, n)
	to := w.now&^mask | reasons
	for r := range Reasons {
		switch was, is := w.now>>r&1, to>>r&1; {
		case was > is:
			n.now[r]--
		case was < is:
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
		w.sum += now - w.began
		n.paused--
	}
	w.last |= to
	w.now, w.since = to, now
}

// Tell counts the pause that lasts in n, so far. A client may not be read from for hours.
func (w *Pauses) Tell(now int64, n *PauseCounts) {
	if w.now == 0 {
		return
	}
	for r := range Reasons {
		if w.now&(1<<r) != 0 {
			n.ns[r].Add(now - w.since)
		}
	}
	w.since = now
}

// soonRead is how soon after a pause a Call must be read to count as having waited for its end.
const soonRead = int64(5 * time.Millisecond)

// Readable is when the Call that was just read could have been read at the earliest. If the bridge had
// not read from the client and reads the Call as soon as it does again, that is when the pause began: the
// Call was there then, or has come since, which nothing tells. It is the first Call after the pause alone.
// When the pause was for memory, reading the Call itself had begun, however long the rest of it takes. early says that
// other Calls have been read already while they wait: those of RDMA clients.
func (w *Pauses) Readable(now int64, early bool) int64 {
	if w.ended == 0 {
		return now
	}
	ended, memory := w.ended, w.last&(1<<WaitMemory) != 0
	w.ended = 0
	if memory || now-ended <= soonRead && !early {
		return w.began
	}
	return now
}

// Reasons are those for which the bridge does not read from the client, a bit for each Reason.
func (w *Pauses) Reasons() uint16 { return w.now }

// Paused is for how long the bridge has not read from the client, in nanoseconds.
func (w *Pauses) Paused(now int64) int64 {
	if w.now == 0 {
		return w.sum
	}
	return w.sum + now - w.began
}

// Total returns for how many seconds, and how often, clients were not read from because of r. Any goroutine.
func (n *PauseCounts) Total(r Reason) (seconds, pauses float64) {
	return float64(n.ns[r].Load()) / 1e9, float64(n.pauses[r].Load())
}

// A PauseReport says how many clients of a listener are not read from.
type PauseReport struct {
	Now    [Reasons]int
	Paused int
}

// Report says how many clients are not read from now. On the loop.
func (n *PauseCounts) Report() PauseReport { return PauseReport{n.now, n.paused} }
