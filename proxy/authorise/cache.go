package authorise

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Calls like those before
//
// Most Calls have the credential of the Call before them on their connection, and the same rules can match Calls with
// one credential. So under the number of the credential (identity.LatestUser) a connection remembers by which rule the
// latest Calls went on as they are, without an answer, an upstream or another user from a rule. The rest of what rules
// look at is compared: the program, the version and the procedure, and whether the Call changes files, which follows
// from the operations of a COMPOUND and is found anew for each Call. All other Calls ask a rules.Judge.

// passedKinds is how many kinds of Calls are remembered; a power of two. A mount of NFSv3 sends some eight kinds
// again and again, and one of NFSv4 two: COMPOUNDs that change files, and others.
const passedKinds = 8

// A Cache is what a connection remembers of the decisions about its Calls. It belongs to the connection's loop. The
// zero value remembers nothing.
type Cache struct {
	policy *Policy                  // that the rest is about; nil before the first Call, and without rules
	on     *loopPolicy              // of policy
	bound  *rules.Bound             // of policy
	passed *[passedKinds]passedCall // by place; nil like policy
}

// A passedCall is a kind of Calls that went on as they are.
type passedCall struct {
	user                        uint64  // the number of their credential; 0: the place is empty
	effect                      *effect // of the rule that let them, or of none
	program, version, procedure uint32
}

// Bound reports whether the cache is about p.
func (d *Cache) Bound(p *Policy) bool { return d.policy == p }

// Bind finds the rules of p that can match the Calls of the client c, on the loop with this index. Nothing that passed
// by others counts any more.
func (d *Cache) Bind(p *Policy, loop int, c *rules.Client) {
	on := &p.on[loop]
	if on.judge == nil {
		on.judge = rules.NewJudge(p.rules)
	}
	*d = Cache{policy: p, on: on, bound: on.judge.Bind(c), passed: new([passedKinds]passedCall)}
}

// Forget forgets everything, because more is known of the client.
func (d *Cache) Forget() { *d = Cache{} }

// place is where a Call is remembered. Calls of one procedure that change files, and that do not, have two places.
func place(h *oncrpc.Call, changes bool) uint32 {
	i := h.Procedure
	if changes {
		i += passedKinds / 2
	}
	return i % passedKinds
}

// Passes reports whether a Call like h went on as it is by a rule of p, or by none, and counts h for that rule then.
// user is the number of the credential, or 0; changes is whether h changes files, and now when it was read.
func (d *Cache) Passes(p *Policy, user uint64, h *oncrpc.Call, changes bool, now int64) bool {
	if user == 0 || d.policy != p {
		return false
	}
	e := &d.passed[place(h, changes)]
	if e.user != user || e.program != h.Program || e.version != h.Version || e.procedure != h.Procedure {
		return false
	}
	e.effect.count(now)
	return true
}

// pass remembers that h went on as it is because of e.
func (d *Cache) pass(user uint64, h *oncrpc.Call, changes bool, e *effect) {
	if user != 0 {
		d.passed[place(h, changes)] = passedCall{user, e, h.Program, h.Version, h.Procedure}
	}
}
