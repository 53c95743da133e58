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
	useBudget  = 120
	nameBudget = 2000
)

// A sampler says which of a loop's Calls are looked at. How many Calls each of these stands for follows from what came
// before, so that what is counted is right on the average.
type sampler struct {
	budget float64 // 0: the weight does not change
	weight float64 // a Call that is looked at stands for so many
	began  int64   // of the period
	ends   int64   // of the period
	spent  float64 // of the budget
	wanted float64 // what would have been spent if each Call had been looked at, about
	skip   int     // so many Calls are not looked at before the next one that is
}

// newSampler returns a sampler with a budget, or one that looks at one of weight Calls.
func newSampler(budget, weight float64) sampler {
	s := sampler{budget: budget, weight: weight, ends: period}
	if budget == 0 {
		s.ends = math.MaxInt64
	}
	s.draw()
	return s
}

// passes reports whether a Call is one of those that are passed over, which is what most Calls pay for. If it is not, looks
// says whether it is looked at.
func (s *sampler) passes(now int64) bool {
	if s.skip > 0 && now < s.ends {
		s.skip--
		return true
	}
	return false
}

// looks returns how many Calls a Call stands for; 0 if it is not looked at.
func (s *sampler) looks(now int64) (weight float64) {
	if now >= s.ends {
		s.weight = max(1, s.wanted/s.budget*float64(period)/float64(now-s.began))
		s.began, s.ends, s.spent, s.wanted = now, now+period, 0, 0
		s.draw()
	}
	if s.passes(now) {
		return 0
	}
	weight = s.weight
	s.spend(1, weight)
	if s.budget > 0 && s.spent >= s.budget {
		// More Calls came than in the period before.
		s.weight *= 2
		s.spent -= s.budget / 2
	}
	s.draw()
	return weight
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
	changes, tells, uses sampler

	weight float64 // of the Call that was asked about last and not passed over; 0: it is not looked at
	latest *ulb.Operation
	of     *sampler // of latest; nil: Calls like it are not looked at
}

// find returns the sampler of Calls for o, nil if they say nothing of names and files.
func (s *samplers) find(o *ulb.Operation) *sampler {
	switch {
	case o.Program == oncrpc.ProgramMount && o.Name == "MNT":
		return &s.changes
	case o.Program != oncrpc.ProgramNFS || o.Version < 3:
		return nil
	}
	switch o.Name {
	case "NULL", "GSS":
		return nil
	case "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK":
		return &s.changes
	case "LOOKUP", "READDIRPLUS", "READDIR", "OPEN", "COMPOUND":
		return &s.tells
	}
	return &s.uses
}

// newSamplers returns samplers that look at a part of the Calls that use a file, and at all others; or that follow the
// load, if part is 0.
func newSamplers(part float64) samplers {
	if part == 0 {
		return samplers{changes: newSampler(0, 1), tells: newSampler(nameBudget, 1), uses: newSampler(useBudget, 1)}
	}
	return samplers{changes: newSampler(0, 1), tells: newSampler(0, 1), uses: newSampler(0, 1/part)}
}

// looks reports whether a Call for o is looked at. told is set if it may tell names.
func (s *samplers) looks(now int64, o *ulb.Operation) (looks, told bool) {
	if o != s.latest {
		s.latest, s.of = o, s.find(o)
	}
	k := s.of
	if k == nil {
		return false, false
	}
	told = k == &s.tells
	if k.passes(now) {
		return false, told
	}
	s.weight = k.looks(now)
	return s.weight > 0, told
}
