package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// A Target is one of several ways to do the same work.
type Target struct {
	Name    string
	Address string // host:port, for Load.Target
	// Processes are the target's, whose CPU time is measured, with their children.
	// Without processes no CPU time is measured.
	Processes Processes
}

// A Case is one load that Compare runs on every target.
type Case struct {
	Name string
	Load Load // Compare fills in Target and Processes
	Bulk bool // compare octets a second, not Calls a second
}

// A Comparison has the results of targets in a case, round by round.
type Comparison struct {
	Case     Case
	Targets  []Target
	Baseline int         // of Targets
	Results  [][]*Result // by target and round; nil where a run failed
	Failures []error     // at most one of each target in a round
}

// Compare runs c for rounds rounds on all targets in turn. Each round begins with
// another target. A run that fails is added to Failures and has no Result. Compare
// returns early when ctx is done. It calls progress, if that is not nil, after each run.
func Compare(ctx context.Context, l *Loader, c Case, targets []Target, baseline, rounds int, progress func(round int, t Target, r *Result, err error)) (*Comparison, error) {
	if baseline < 0 || baseline >= len(targets) {
		return nil, fmt.Errorf("bench: baseline %d of %d targets", baseline, len(targets))
	}
	cmp := &Comparison{Case: c, Targets: targets, Baseline: baseline, Results: make([][]*Result, len(targets))}
	for i := range targets {
		cmp.Results[i] = make([]*Result, rounds)
	}
	for round := range rounds {
		for k := range targets {
			i := turn(round, k, len(targets))
			load := c.Load
			load.Target = targets[i].Address
			load.Processes = targets[i].Processes.Family()
			r, err := l.Run(ctx, load)
			if ctx.Err() != nil {
				return cmp, ctx.Err()
			}
			if err != nil {
				cmp.Failures = append(cmp.Failures, fmt.Errorf("%s: %s: round %d: %w", c.Name, targets[i].Name, round+1, err))
			}
			cmp.Results[i][round] = r
			if progress != nil {
				progress(round+1, targets[i], r, err)
			}
		}
	}
	return cmp, nil
}

// turn returns the index of the target for the k-th run of a round. Targets rotate, and
// every other time around they go backwards, so that each pair runs in both orders.
func turn(round, k, n int) int {
	if round/n%2 == 1 {
		k = n - 1 - k
	}
	return (round + k) % n
}

// Ratios returns the quartiles of metric m of target i, divided by the baseline's in the same
// round.
func (c *Comparison) Ratios(i int, m Metric) Quartiles {
	return ratios(m, c.Results[i], c.Results[c.Baseline])
}

// Figures returns the quartiles of metric m of target i.
func (c *Comparison) Figures(i int, m Metric) Quartiles { return figures(m, c.Results[i]) }

// Print writes the figures of the baseline, and the ratios of every other target to
// them.
func (c *Comparison) Print(w io.Writer) error {
	base := c.Targets[c.Baseline]
	p := &printer{w: w}
	p.f("%s: %s, %d connections x %d; median [quartiles] of ratios to %s, %d rounds of %v\n",
		c.Case.Name, c.Case.Load.Work, c.Case.Load.Conns, c.Case.Load.Depth, base.Name, len(c.Results[c.Baseline]), c.Case.Load.Duration)
	if p.err != nil {
		return p.err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tp := &printer{w: t}
	tp.f("\t%s", base.Name)
	for i, x := range c.Targets {
		if i != c.Baseline {
			tp.f("\t%s", x.Name)
		}
	}
	tp.f("\n")
	for _, m := range Metrics {
		tp.f("%s\t%s", m.Name, m.Format(c.Figures(c.Baseline, m)))
		for i := range c.Targets {
			if i != c.Baseline {
				tp.f("\t%s", c.Ratios(i, m))
			}
		}
		tp.f("\n")
	}
	if tp.err == nil {
		tp.err = t.Flush()
	}
	if tp.err != nil {
		return tp.err
	}
	for _, err := range c.Failures {
		p.f("failed: %s\n", oneLine(err))
	}
	return p.err
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Format formats the median of figures of m with its unit.
func (m Metric) Format(q Quartiles) string {
	if q.N == 0 {
		return "-"
	}
	switch m.Name {
	case "calls/s":
		return fmt.Sprintf("%.0f", q.Median)
	case "p50", "p99":
		return fmt.Sprintf("%.0f us", q.Median)
	case "CPU/call":
		return fmt.Sprintf("%.2f us", q.Median)
	case "CPU/GB":
		return fmt.Sprintf("%.3f s", q.Median)
	}
	return fmt.Sprintf("%.3f", q.Median)
}

// metric returns the metric of Metrics with this name.
func metric(name string) Metric {
	i := slices.IndexFunc(Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		panic("BUG: bench: no metric " + name)
	}
	return Metrics[i]
}
