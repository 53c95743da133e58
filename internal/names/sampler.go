package names

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// The budgets of a sample that follows the load: how many Calls of a loop are looked at in a period, about.
const (
	period     = int64(100 * time.Millisecond)
	useBudget  = 250
	nameBudget = 2000
)

// A sampler says which of a loop's Calls are looked at. How many Calls each of these stands for follows from what came
// before, so that what is counted is right on the average.
type sampler struct {
	budget float64 // 0: the weight does not change
	weight float64 // a Call that is looked at stands for so many
	began  int64   // of the period
	spent  float64 // of the budget
	wanted float64 // what would have been spent if each Call had been looked at, about
	skip   int     // so many Calls are not looked at before the next one that is
}

// looks reports whether a Call is looked at.
func (s *sampler) looks(now int64) bool {
	switch took := now - s.began; {
	case s.budget == 0:
	case took >= period:
		s.weight = max(1, s.wanted/s.budget*float64(period)/float64(took))
		s.began, s.spent, s.wanted = now, 0, 0
		s.draw()
	case s.spent >= s.budget:
		// More Calls came than in the period before.
		s.weight *= 2
		s.spent -= s.budget / 2
		s.draw()
	}
	if s.skip > 0 {
		s.skip--
		return false
	}
	s.spend(1, s.weight)
	s.draw()
	return true
}

// draw chooses how many Calls are passed over: as many as chance would that looks at one of weight Calls.
func (s *sampler) draw() {
	s.skip = 0
	if s.weight > 1 {
		s.skip = int(math.Log(1-rand.Float64()) / math.Log1p(-1/s.weight))
	}
}

// spend notes what a Call has cost that stands for so many.
func (s *sampler) spend(cost, weight float64) {
	s.spent += cost
	s.wanted += cost * weight
}

// samplers are those of a loop: for Calls that tell names, and for those that only use a file. Calls that change names are
// all looked at, as no path would be right any more.
type samplers struct {
	tells, uses sampler
	weight      float64 // of the Call that was looked at last
	latest      *ulb.Operation
	means       meaning // of latest
}

// A meaning says what Calls for an operation tell of names.
type meaning uint8

const (
	nothing meaning = iota // they are not looked at
	uses                   // of a file
	tells                  // names
	changes                // names
)

func meaningOf(o *ulb.Operation) meaning {
	switch {
	case o.Program == oncrpc.ProgramMount && o.Name == "MNT":
		return changes
	case o.Program != oncrpc.ProgramNFS || o.Version < 3:
		return nothing
	}
	switch o.Name {
	case "NULL", "GSS":
		return nothing
	case "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK":
		return changes
	case "LOOKUP", "READDIRPLUS", "READDIR", "OPEN", "COMPOUND":
		return tells
	}
	return uses
}

// newSamplers returns samplers that look at a part of the Calls that use a file, and at all others; or that follow the
// load, if part is 0.
func newSamplers(part float64) samplers {
	if part == 0 {
		return samplers{tells: sampler{budget: nameBudget, weight: 1}, uses: sampler{budget: useBudget, weight: 1}}
	}
	s := samplers{tells: sampler{weight: 1}, uses: sampler{weight: 1 / part}}
	s.uses.draw()
	return s
}

// looks reports whether a Call for o is looked at. told is set if it may tell names.
func (s *samplers) looks(now int64, o *ulb.Operation) (looks, told bool) {
	if o != s.latest {
		s.latest, s.means = o, meaningOf(o)
	}
	k := &s.uses
	switch s.means {
	case nothing:
		return false, false
	case changes:
		s.weight = 1
		return true, false
	case tells:
		k, told = &s.tells, true
	}
	if looks = k.looks(now); looks {
		s.weight = k.weight
	}
	return looks, told
}
