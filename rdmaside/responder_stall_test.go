package rdmaside

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

const (
	testStall = 30 * time.Second
	testPace  = 16 << 10
)

func paced(tc *responderCase) { tc.opts.StallTimeout, tc.opts.Pace = testStall, testPace }

// longCall sends a Call in a Position Zero Read chunk, whose segments end at the given cuts.
func (tc *responderCase) longCall(xid uint32, n int, cuts ...int) (m []byte) {
	m = opaqueCall(xid, n)
	tc.peer.send(0, header(xid, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, cuts...)) }))
	return m
}

// callInPieces sends a Call of 4 MiB, of which the first twenty RDMA Reads bring 4 octets each.
func (tc *responderCase) callInPieces() {
	tc.t.Helper()
	var cuts []int
	for i := range 20 {
		cuts = append(cuts, 4*(i+1))
	}
	tc.longCall(1, 4<<20, cuts...)
	tc.wantNoCall("it is not here")
}

// A Requester that serves an RDMA Read now and then does not keep megabytes.
func TestResponderPace(t *testing.T) {
	t.Run("a few octets now and then", func(t *testing.T) {
		responderTest(t, paced, func(tc *responderCase) {
			tc.answered()
			serve := tc.holdReads(0)
			used := tc.replies.Used()
			tc.callInPieces()
			for range 2 {
				tc.sleep(10 * time.Second)
				serve(1)
			}
			tc.wantUp("20 s")
			tc.sleep(40 * time.Second)
			tc.wantEnded("60 s", errReadStall)
			if n := tc.replies.Used(); n >= used {
				t.Errorf("%d octets are lent, %d before", n, used)
			}
		})
	})
	t.Run("one after the other", func(t *testing.T) {
		one := func(tc *responderCase) {
			paced(tc)
			tc.opts.ORD = 1
		}
		responderTest(t, one, func(tc *responderCase) {
			tc.answered()
			serve := tc.holdReads(0)
			tc.callInPieces()
			for range 12 {
				tc.sleep(10 * time.Second)
				up := false
				tc.loop.Do(func() { up = tc.ended == 0 })
				if up {
					serve(1)
				}
			}
			tc.wantEnded("two minutes", errReadStall)
		})
	})
	t.Run("at its pace", func(t *testing.T) {
		responderTest(t, paced, func(tc *responderCase) {
			tc.answered()
			serve := tc.holdReads(0)
			m := tc.longCall(1, 4<<20)
			for range len(m)/maxRead + 1 {
				tc.wantNoCall("it is not here")
				tc.sleep(maxRead / testPace * time.Second)
				serve(1)
			}
			tc.answer(tc.wantCall("in the end", m), accepted(1))
			tc.peer.wantSend("its reply")
		})
	})
	t.Run("small Calls at long intervals", func(t *testing.T) {
		responderTest(t, paced, func(tc *responderCase) {
			tc.answered()
			serve := tc.holdReads(0)
			for xid := uint32(1); xid < 10; xid++ {
				m := tc.longCall(xid, 5000)
				tc.sleep(testStall - time.Second)
				serve(1)
				tc.answer(tc.wantCall("it is small", m), accepted(xid))
				tc.peer.wantSend("its reply")
			}
		})
	})
	t.Run("a Call after a pause", func(t *testing.T) {
		responderTest(t, paced, func(tc *responderCase) {
			tc.answered()
			serve := tc.holdReads(1)
			m := tc.longCall(1, 5000)
			tc.answer(tc.wantCall("the first", m), accepted(1))
			tc.peer.wantSend("its reply")
			tc.sleep(testStall - time.Second) // the timer is about to fire
			m = tc.longCall(2, 1<<20)
			tc.sleep(2 * time.Second)
			tc.wantUp("it has just begun")
			serve(8)
			tc.answer(tc.wantCall("the second", m), accepted(2))
			tc.peer.wantSend("its reply")
		})
	})
}

// Offering Calls costs no memory before the Reads of earlier ones are posted.
func TestResponderLeasesInTurn(t *testing.T) {
	responderTest(t, func(tc *responderCase) { tc.opts.ORD = 4 }, func(tc *responderCase) {
		tc.answered()
		serve := tc.holdReads(0)
		used := tc.replies.Used()
		var all [][]byte
		for xid := range uint32(8) {
			all = append(all, tc.longCall(xid+1, 1<<20))
		}
		synctest.Wait()
		if n := tc.replies.Used() - used; n > 3<<20 {
			t.Errorf("8 Calls of 1 MiB with 4 Reads outstanding hold %d octets", n)
		}
		if held, octets := tc.c.Pulling(); held < 1<<20 || held > 3<<20 || octets != 0 {
			t.Errorf("%d octets are held, and %d were pulled", held, octets)
		}
		serve(1 << 20)
		for i, m := range all {
			tc.answer(tc.wantCall("in order", m), accepted(uint32(i+1)))
			tc.peer.wantSend("its reply")
		}
		if held, octets := tc.c.Pulling(); held != 0 || octets < 8<<20 {
			t.Errorf("%d octets are held, and %d were pulled in the end", held, octets)
		}
	})
}

// A Call that gets no memory is given up, with its connection.
func TestResponderStarvedForever(t *testing.T) {
	responderTest(t, paced, func(tc *responderCase) {
		tc.answered()
		hold := tc.hold(64 << 10)
		defer hold.Release()
		tc.longCall(1, 60000)
		tc.sleep(testStall - time.Second)
		tc.wantUp("it waits")
		tc.sleep(testStall)
		tc.wantEnded("one to two times StallTimeout", errStarved)
	})
}
