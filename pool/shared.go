package pool

import (
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
	"github.com/rdmabridge/rdmabridge/pool/drr"
)

// firstAge is the age of a new pool, in which no host counts as answered lately.
const firstAge = 1 << 10

// A shared is what a pool knows of the Calls outstanding and of their hosts. The pool's lock guards it.
type shared struct {
	age         uint32          // how often ages.Ageing has passed, beginning with firstAge
	outstanding int             // Calls dispatched and not done, on retired connections, too
	ages        ages.Count[int] // of these Calls
	unproven    int             // of these Calls, those that no Reply speaks for: share.go
	holders     []*Host         // hosts that hold credits
	aside       drr.Ring[Host]  // hosts that wait and have no room in their windows; recall looks at the first
	hosts       int             // hosts that have waiting Calls
	turned      time.Time       // when a Call last went in its host's turn
	thawing     bool            // thaw has set its timer
	tried       uint32          // the age in which a host that was not answered has got another Call, which has not come back
	scarceFor   int             // ages for which unproven Calls have had most credits
}

// old is how many Calls of h are outstanding for longer than a Call usually is. The caller holds
// p.mu.
func (h *Host) old(now uint32) int { return int(h.held) - h.ages.Young(now) }

// wasAnswered reports whether h ever got a Reply. The caller holds p.mu.
func (h *Host) wasAnswered() bool { return h.answered >= firstAge }

// lately reports whether h was answered in the last ages. The caller holds p.mu.
func (s *shared) lately(h *Host) bool { return s.age-h.answered < remembered }
