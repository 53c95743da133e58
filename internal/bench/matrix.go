package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Section is one table of a Report before it is measured.
type Section struct {
	Title string
	Cases []Case
}

// Matrix returns the cases of kind, which is echo, nfs or all. It leaves out cases whose
// names do not contain only.
func Matrix(kind, only string) ([]Section, error) {
	all := []Section{
		{"Echo: a program that no binding knows", PeerCases()},
		{"NFSv3: bindings place data directly", NFSCases()},
	}
	switch kind {
	case "all":
	case "echo":
		all = all[:1]
	case "nfs":
		all = all[1:]
	default:
		return nil, fmt.Errorf("--cases: %q is not possible here; write echo, nfs or all", kind)
	}
	n := 0
	var names []string
	for i := range all {
		for _, c := range all[i].Cases {
			names = append(names, c.Name)
		}
		all[i].Cases = slices.DeleteFunc(all[i].Cases, func(c Case) bool { return !strings.Contains(c.Name, only) })
		n += len(all[i].Cases)
	}
	if n == 0 {
		return nil, fmt.Errorf("--only: no case of %s has %q in its name; write a part of one of these: %s", kind, only, strings.Join(names, "; "))
	}
	return all, nil
}

// MatrixOptions say what CompareMatrix compares and how long.
type MatrixOptions struct {
	Targets  []Target
	Baseline int // of Targets
	Rounds   int // of one run of each target

	Duration time.Duration // Load.Duration of each run
	Warmup   time.Duration // Load.Warmup of each run
	Timeout  time.Duration // Load.Timeout of each run

	Notes []string  // for the head of the page, such as versions
	Log   io.Writer // receives a line for each run and a table for each case
}

// CompareMatrix compares the targets in every case of sections.
func CompareMatrix(ctx context.Context, l *Loader, sections []Section, o MatrixOptions) (*Report, error) {
	r := &Report{Began: time.Now(), Notes: append([]string{Machine()}, o.Notes...)}
	r.Notes = append(r.Notes, fmt.Sprintf("%d rounds of %v, after %v of warm-up each, targets in turn", o.Rounds, o.Duration, o.Warmup))
	r.Loads[0] = LoadAverage()
	for _, s := range sections {
		all := Comparisons{Title: s.Title}
		for _, c := range s.Cases {
			c.Load.Duration, c.Load.Warmup, c.Load.Timeout = o.Duration, o.Warmup, o.Timeout
			fmt.Fprintf(o.Log, "%s\n", c.Name)
			cmp, err := Compare(ctx, l, c, o.Targets, o.Baseline, o.Rounds, Progress(o.Log))
			if err != nil {
				return nil, err
			}
			if err := cmp.Print(o.Log); err != nil {
				return nil, err
			}
			all.Of = append(all.Of, cmp)
		}
		r.Sections = append(r.Sections, all)
	}
	r.Loads[1], r.Took = LoadAverage(), time.Since(r.Began)
	return r, nil
}

// Progress returns a function for Compare that writes a line for each run.
func Progress(w io.Writer) func(round int, t Target, r *Result, err error) {
	return func(round int, t Target, r *Result, err error) {
		if err != nil {
			fmt.Fprintf(w, "round %d: %s: %v\n", round, t.Name, err)
			return
		}
		fmt.Fprintf(w, "round %d: %-16s %10.0f calls/s %8.3f GB/s  p50 %.0f p99 %.0f us\n",
			round, t.Name, r.CallsPerSecond, r.GBPerSecond, r.Latency.P50, r.Latency.P99)
	}
}

// All returns the comparisons of every section.
func (r *Report) All() []*Comparison {
	var all []*Comparison
	for _, s := range r.Sections {
		all = append(all, s.Of...)
	}
	return all
}

// WriteFile writes the page to a file, which it replaces in one step.
func (r *Report) WriteFile(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".bench-peers-*")
	if err != nil {
		return err
	}
	err = errors.Join(r.Markdown(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
