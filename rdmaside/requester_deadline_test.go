package rdmaside

import (
	"strings"
	"testing"
	"time"
)

// A dropWatcher is a DropWatcher whose Dropped returns what the test wants.
type dropWatcher struct {
	*requesterCase
	answer Drop
	asked  int
	late   int // as it was told last
}

func (w *dropWatcher) Dropped(_ *Requester, _ *Call, late int) Drop {
	w.asked++
	w.late = late
	return w.answer
}

// retireTest runs f with a connection whose deadline is a minute. Call 1 was sent
// at 0 s and is never answered; Call 2 was sent at 10 s and is answered.
func retireTest(t *testing.T, answer Drop, f func(tc *requesterCase, w *dropWatcher)) {
	t.Helper()
	requesterTest(t, func(tc *requesterCase) { tc.opts.Deadline = time.Minute }, func(tc *requesterCase) {
		w := &dropWatcher{requesterCase: tc, answer: answer}
		tc.loop.Do(func() { tc.r.watcher = w })
		tc.open(8)
		tc.send(getAttrCall(1))
		tc.sleep(10 * time.Second)
		tc.send(getAttrCall(2))
		tc.peer.send(0, plain(2, 8), getAttrReply(2))
		tc.wantReply("the later one", getAttrReply(2))
		f(tc, w)
	})
}

// TestRequesterRetire checks that the other Calls of a connection with a dropped
// Call are answered.
func TestRequesterRetire(t *testing.T) {
	retireTest(t, DropRetire, func(tc *requesterCase, w *dropWatcher) {
		tc.sleep(40 * time.Second)
		tc.send(getAttrCall(3))
		tc.sleep(5 * time.Second)
		tc.send(getAttrCall(4))
		tc.sleep(4 * time.Second)
		tc.wantUp("59 s")
		if w.asked != 0 {
			t.Error("left before the deadline")
		}
		tc.sleep(2 * time.Second)
		tc.wantUp("Calls 3 and 4 have time left")
		if w.asked != 1 {
			t.Errorf("the watcher was asked %d times", w.asked)
		}
		if err := tc.try(getAttrCall(5)); err != ErrClosed {
			t.Errorf("Send on a connection that is left: %v", err)
		}
		tc.peer.send(0, plain(4, 8), getAttrReply(4))
		tc.wantReply("the newest", getAttrReply(4))
		tc.wantUp("Call 3 has time left")
		tc.peer.send(0, plain(3, 8), getAttrReply(3))
		tc.wantReply("the last one in time", getAttrReply(3))
		tc.wantEnded("nothing but the dropped one is left", ErrDropped)
		tc.wantFate("the dropped one", 1, InLimbo, ErrDropped)
	})
}

// TestRequesterRetireAnswered checks that a late answer to the dropped Call still
// completes it.
func TestRequesterRetireAnswered(t *testing.T) {
	retireTest(t, DropRetire, func(tc *requesterCase, w *dropWatcher) {
		tc.sleep(40 * time.Second)
		tc.send(getAttrCall(3))
		tc.sleep(11 * time.Second)
		tc.wantUp("Call 3 has time left")
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
		tc.wantReply("it was not dropped, only late", getAttrReply(1))
		tc.wantUp("Call 3 has time left still")
		tc.peer.send(0, plain(3, 8), getAttrReply(3))
		tc.wantReply("the last one", getAttrReply(3))
		tc.wantEnded("there is another connection by now", ErrDropped)
	})
}

// TestRequesterRetireDeadline checks that another Call that is not answered closes
// the connection at its own deadline.
func TestRequesterRetireDeadline(t *testing.T) {
	retireTest(t, DropRetire, func(tc *requesterCase, _ *dropWatcher) {
		tc.sleep(40 * time.Second)
		tc.send(getAttrCall(3))
		tc.sleep(59 * time.Second)
		tc.wantUp("59 s after Call 3")
		tc.sleep(2 * time.Second)
		tc.wantEnded("61 s after Call 3", ErrDropped)
		tc.wantFate("the dropped one", 1, InLimbo, ErrDropped)
		tc.wantFate("and the late one", 3, InLimbo, ErrDropped)
	})
}

// TestRequesterRetireRefused checks that the connection is closed at once when the
// watcher does not want to keep it.
func TestRequesterRetireRefused(t *testing.T) {
	retireTest(t, DropClose, func(tc *requesterCase, w *dropWatcher) {
		tc.sleep(40 * time.Second)
		tc.send(getAttrCall(3))
		tc.sleep(11 * time.Second)
		tc.wantEnded("61 s", ErrDeadline)
		tc.wantFate("the dropped one", 1, InLimbo, ErrDeadline)
		tc.wantFate("the one beside it", 3, InLimbo, ErrDeadline)
		if w.asked != 1 || !strings.Contains(tc.logs.String(), "later ones were") {
			t.Errorf("asked %d times; log: %s", w.asked, &tc.logs)
		}
		tc.logs.Reset()
	})
}

// TestRequesterKeep checks that a connection goes on beside Calls that have passed their deadline,
// and that such a Call gives its credit back when it is answered after all.
func TestRequesterKeep(t *testing.T) {
	retireTest(t, DropKeep, func(tc *requesterCase, w *dropWatcher) {
		tc.sleep(20 * time.Second)
		tc.send(getAttrCall(3))
		tc.sleep(10 * time.Second)
		tc.send(getAttrCall(4))
		tc.peer.send(0, plain(4, 8), getAttrReply(4))
		tc.wantReply("a later one", getAttrReply(4))
		tc.sleep(21 * time.Second)
		tc.wantUp("Call 1 is past its deadline")
		if w.asked != 1 || w.late != 1 {
			t.Errorf("asked %d times, of %d late Calls, want 1 and 1", w.asked, w.late)
		}
		tc.sleep(30 * time.Second)
		tc.wantUp("Call 3 is, too")
		if w.asked != 2 || w.late != 2 {
			t.Errorf("asked %d times, of %d late Calls, want 2 and 2", w.asked, w.late)
		}
		tc.send(getAttrCall(5))
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
		tc.wantReply("late", getAttrReply(1))
		tc.peer.send(0, plain(5, 8), getAttrReply(5))
		tc.wantReply("in time", getAttrReply(5))
		tc.sleep(2 * time.Minute)
		tc.wantUp("nothing but a late Call is outstanding")
		tc.send(getAttrCall(6))
		tc.sleep(61 * time.Second)
		tc.wantEnded("nothing later than Call 6 is answered", ErrDeadline)
		tc.wantFate("the late one", 3, InLimbo, ErrDeadline)
		tc.wantFate("the last one", 6, InLimbo, ErrDeadline)
		tc.logs.Reset()
	})
}
