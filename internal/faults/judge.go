package faults

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
)

// An incident is a Call, or a connection, that a fault may strike.
type incident struct {
	transport  transport
	peer       netip.Addr
	connection bool

	xid, program, version uint32
	operation             string
	length                int
	write, reply          bool          // the Call has offered a Write list, a Reply chunk
	since                 time.Duration // since the start of the server
}

// An injection is a fault that strikes one Call or one connection.
type injection struct {
	*Rule
	rule int
	n    uint64        // of the Calls that the rule matched, counted from 1
	wait time.Duration // of delay: Delay and a part of Jitter
	dice *rand.Rand
}

// A judge decides what happens to each Call. It is safe for concurrent use.
type judge struct {
	plan  *Plan
	start time.Time
	log   zerolog.Logger

	mu     sync.Mutex // guards counts; a leaf
	counts []Count
}

// A Count says what a rule has done.
type Count struct {
	Rule     string `json:"rule"`
	Fault    string `json:"fault"`
	Matched  uint64 `json:"matched"`
	Struck   uint64 `json:"struck"`   // it decided to inject the fault
	Injected uint64 `json:"injected"` // it did; a Reply without a chunk, for example, has none to spoil
}

func newJudge(p *Plan, log zerolog.Logger) *judge {
	j := &judge{plan: p, start: time.Now(), log: log, counts: make([]Count, len(p.Rules))}
	for i := range p.Rules {
		j.counts[i].Rule, j.counts[i].Fault = p.Rules[i].Name, p.Rules[i].Fault
	}
	return j
}

// decide returns the fault that strikes c, or nil. Each rule counts all that it matches. If several
// would strike, the first one does.
func (j *judge) decide(c *incident) *injection {
	c.since = time.Since(j.start)
	j.mu.Lock()
	defer j.mu.Unlock()
	var struck *injection
	for i := range j.plan.Rules {
		r, k := &j.plan.Rules[i], &j.counts[i]
		if !r.matches(c) {
			continue
		}
		k.Matched++
		if struck != nil || k.Matched <= r.After || (k.Matched-r.After)%r.Every != 0 || r.Count != 0 && k.Struck >= r.Count {
			continue
		}
		dice := rand.New(rand.NewPCG(j.plan.Seed, uint64(i)<<40|k.Matched))
		if p := r.Probability; p != nil && dice.Float64() >= *p {
			continue
		}
		k.Struck++
		struck = &injection{Rule: r, rule: i, n: k.Matched, wait: time.Duration(r.Delay), dice: dice}
		if r.Jitter > 0 {
			struck.wait += time.Duration(dice.Int64N(int64(r.Jitter) + 1))
		}
	}
	return struck
}

// injected counts and logs the fault i, which strikes c.
func (j *judge) injected(i *injection, c *incident) {
	j.mu.Lock()
	j.counts[i.rule].Injected++
	j.mu.Unlock()
	e := j.log.Info().Str("event", "fault_injected").Str("fault", i.Fault).Str("rule", i.Name).Uint64("match", i.n).
		Stringer("transport", c.transport).Stringer("client", c.peer)
	if !c.connection {
		e = e.Str("xid", fmt.Sprintf("%#08x", c.xid)).Uint32("program", c.program).Uint32("version", c.version).Str("operation", c.operation)
	}
	if i.wait > 0 {
		e = e.Dur("delay", i.wait)
	}
	e.Msg("fault injected")
}

// Counts returns what each rule has done so far.
func (j *judge) Counts() []Count {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]Count(nil), j.counts...)
}

// Summary writes a table of counts.
func Summary(w io.Writer, counts []Count) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tFAULT\tMATCHED\tSTRUCK\tINJECTED")
	for _, c := range counts {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\n", c.Rule, c.Fault, c.Matched, c.Struck, c.Injected)
	}
	return t.Flush()
}
