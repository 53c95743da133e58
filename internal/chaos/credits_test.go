package chaos

import "fmt"

// A creditLedger judges whether a Requester keeps to its grants. The ledger cannot know
// which Replies the Requester had seen when it sent a Call; but if no number of them
// allows the Call, the Requester broke the rule. RFC 8166 Section 3.3.1.
type creditLedger struct {
	calls     int64
	replies   int64
	requested uint32
	grants    []int64 // the grant of each Reply, from reply number base on
	base      int64
}

// call counts a Call that asked for so many credits, and reports an overrun.
func (l *creditLedger) call(requested uint32) (over bool) {
	l.calls++
	l.requested = requested
	// With the first k Replies seen, calls-k are outstanding. Only the last few k can
	// explain the Call, for no grant in use is above the credits requested.
	for k := l.replies; k >= l.base && l.calls-k <= int64(requested); k-- {
		grant := int64(1) // "one credit until the first Reply"
		if k > 0 {
			if k-l.base < 1 {
				break
			}
			grant = l.grants[k-l.base-1]
		}
		if l.calls-k <= grant {
			return false
		}
	}
	return true
}

// reply counts a Reply that answers a Call and grants so many credits.
func (l *creditLedger) reply(grant uint32) {
	l.replies++
	g := int64(min(max(grant, 1), max(l.requested, 1)))
	l.grants = append(l.grants, g)
	if most := 2 * int(max(l.requested, 1)); len(l.grants) > 2*most {
		n := len(l.grants) - most
		l.grants = append(l.grants[:0], l.grants[n:]...)
		l.base += int64(n)
	}
}

// refuse counts a Reply that the Requester refuses: its grant counts only if it is below the one
// in force.
func (l *creditLedger) refuse(grant uint32) {
	last := int64(1)
	if n := len(l.grants); n > 0 {
		last = l.grants[n-1]
	}
	l.reply(uint32(min(int64(max(grant, 1)), last)))
}

func (l *creditLedger) String() string {
	return fmt.Sprintf("%d calls, %d replies, %d credits requested, last grants %v", l.calls, l.replies, l.requested, l.grants[max(0, len(l.grants)-8):])
}
