package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
)

func newBenchCompareCommand() *cobra.Command {
	var f loadFlags
	var pids [2]pidFlag
	targets := []bench.Target{{Name: "a"}, {Name: "b"}}
	var rounds int
	cmd := &cobra.Command{
		Use:   "compare --a ADDR --b ADDR",
		Short: "Give two addresses the same load in turn: b's figures as ratios to a's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkRounds(rounds); err != nil {
				return err
			}
			l, err := f.start(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := interruptible()
			defer stop()
			for i := range targets {
				targets[i].Processes = bench.Processes(pids[i])
			}
			c, err := bench.Compare(ctx, l, bench.Case{Name: "compare", Load: f.load}, targets, 0, rounds, progress(cmd.ErrOrStderr()))
			if err == nil && f.asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(newComparisonJSON(c))
			} else if err == nil {
				err = c.Print(cmd.OutOrStdout())
			}
			if err == nil && len(c.Failures) > 0 {
				err = fmt.Errorf("%d runs failed", len(c.Failures))
			}
			return failed(errors.Join(err, l.Close()))
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&targets[0].Address, "a", "", "first `ADDRESS`")
	cmd.Flags().StringVar(&targets[1].Address, "b", "", "second `ADDRESS`")
	cmd.Flags().Var(&pids[0], "a-pid", "processes behind it: 17 or 17+18")
	cmd.Flags().Var(&pids[1], "b-pid", "the same for the second")
	cmd.Flags().IntVar(&rounds, "rounds", 9, "of one run each")
	cmd.Flags().DurationVar(&f.load.Duration, "duration", 500*time.Millisecond, "to measure in each run")
	required(cmd, "a", "b")
	return cmd
}

func checkRounds(n int) error {
	if n < 1 || n > 1000 {
		return fmt.Errorf("--rounds %d: want 1 to 1000", n)
	}
	return nil
}

// progress writes a line for each run.
func progress(w io.Writer) func(int, bench.Target, *bench.Result, error) {
	return func(round int, t bench.Target, r *bench.Result, err error) {
		if err != nil {
			fmt.Fprintf(w, "round %d: %s: %v\n", round, t.Name, err)
			return
		}
		fmt.Fprintf(w, "round %d: %-16s %10.0f calls/s %8.3f GB/s  p50 %.0f p99 %.0f us\n",
			round, t.Name, r.CallsPerSecond, r.GBPerSecond, r.Latency.P50, r.Latency.P99)
	}
}

// comparisonJSON is a comparison for programs.
type comparisonJSON struct {
	Case     string                                `json:"case"`
	Baseline string                                `json:"baseline"`
	Ratios   map[string]map[string]bench.Quartiles `json:"ratios"`  // by target and metric
	Results  map[string][]*bench.Result            `json:"results"` // by target
	Failures []string                              `json:"failures,omitempty"`
}

func newComparisonJSON(c *bench.Comparison) *comparisonJSON {
	j := &comparisonJSON{
		Case: c.Case.Name, Baseline: c.Targets[c.Baseline].Name,
		Ratios: make(map[string]map[string]bench.Quartiles), Results: make(map[string][]*bench.Result),
	}
	for i, t := range c.Targets {
		j.Results[t.Name] = c.Results[i]
		j.Ratios[t.Name] = make(map[string]bench.Quartiles)
		for _, m := range bench.Metrics {
			if q := c.Ratios(i, m); q.N > 0 {
				j.Ratios[t.Name][m.Name] = q
			}
		}
	}
	for _, err := range c.Failures {
		j.Failures = append(j.Failures, err.Error())
	}
	return j
}

// targetFlag is a list of NAME=ADDRESS or NAME=ADDRESS@PID+PID.
type targetFlag []bench.Target

func (t *targetFlag) Type() string { return "NAME=ADDRESS[@PID]" }

func (t *targetFlag) String() string {
	var s []string
	for _, x := range *t {
		s = append(s, x.Name+"="+x.Address)
	}
	return strings.Join(s, ",")
}

func (t *targetFlag) Set(v string) error {
	for item := range strings.SplitSeq(v, ",") {
		name, rest, ok := strings.Cut(item, "=")
		address, pids, withPIDs := strings.Cut(rest, "@")
		if _, _, err := net.SplitHostPort(address); !ok || name == "" || err != nil {
			return fmt.Errorf("%q: want NAME=HOST:PORT or NAME=HOST:PORT@PID", item)
		}
		x := bench.Target{Name: name, Address: address}
		if withPIDs {
			var p pidFlag
			if err := p.Set(pids); err != nil {
				return err
			}
			x.Processes = bench.Processes(p)
		}
		if slices.ContainsFunc(*t, func(y bench.Target) bool { return y.Name == name }) {
			return fmt.Errorf("%q: there is a %s already", item, name)
		}
		*t = append(*t, x)
	}
	return nil
}

// peersOptions are the flags of bench peers.
type peersOptions struct {
	loadFlags
	targets          targetFlag
	baseline         string
	cases, only, out string
	rounds           int
	notes            []string
}

func newBenchPeersCommand() *cobra.Command {
	var o peersOptions
	cmd := &cobra.Command{
		Use:   "peers --target NAME=ADDR@PID ...",
		Short: "Give several proxies a matrix of loads in turn and write a table of ratios",
		Long: `Peers runs each load of a matrix against all targets in turn, for some rounds,
and writes a page of Markdown with ratios to the baseline. deploy/bench/peers.sh
starts the usual targets first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible()
			defer stop()
			return o.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addLoader(cmd)
	s := cmd.Flags()
	s.Var(&o.targets, "target", "what to compare, one or several with commas; may be repeated")
	s.StringVar(&o.baseline, "baseline", "", "name of the target that others are compared with; default the first")
	s.StringVar(&o.cases, "cases", "echo", "echo, nfs or all")
	s.StringVar(&o.only, "only", "", "run only cases whose name has this in it")
	s.IntVar(&o.rounds, "rounds", 9, "of one run of each target")
	s.DurationVar(&o.load.Duration, "duration", 500*time.Millisecond, "to measure in each run")
	s.DurationVar(&o.load.Warmup, "warmup", 100*time.Millisecond, "before measuring")
	s.DurationVar(&o.load.Timeout, "timeout", 10*time.Second, "for connecting, and for the last Replies")
	s.StringVar(&o.out, "out", "", "`FILE` for the page; default standard output")
	s.StringArrayVar(&o.notes, "note", nil, "`TEXT` for the head of the page, such as versions")
	required(cmd, "target")
	return cmd
}

func (o *peersOptions) run(ctx context.Context, out, errOut io.Writer) error {
	if err := checkRounds(o.rounds); err != nil {
		return err
	}
	baseline := 0
	if o.baseline != "" {
		baseline = slices.IndexFunc(o.targets, func(t bench.Target) bool { return t.Name == o.baseline })
		if baseline < 0 {
			return fmt.Errorf("--baseline %s: no such target", o.baseline)
		}
	}
	sections, err := o.matrix()
	if err != nil {
		return err
	}
	l, err := o.start(errOut)
	if err != nil {
		return err
	}
	report := bench.Report{Began: time.Now(), Notes: append([]string{bench.Machine(), buildInfo().String()}, o.notes...)}
	report.Notes = append(report.Notes, fmt.Sprintf("%d rounds of %v, after %v of warm-up each, targets in turn", o.rounds, o.load.Duration, o.load.Warmup))
	report.Loads[0] = bench.LoadAverage()
	err = o.measure(ctx, l, sections, baseline, &report, errOut)
	report.Loads[1], report.Took = bench.LoadAverage(), time.Since(report.Began)
	if err = errors.Join(err, l.Close()); err != nil {
		return failed(err)
	}
	return failed(o.write(out, &report))
}

// A section of the matrix is one table.
type section struct {
	title string
	cases []bench.Case
}

func (o *peersOptions) matrix() ([]section, error) {
	all := []section{
		{"Echo: a program that no binding knows", bench.PeerCases()},
		{"NFSv3: bindings place data directly", bench.NFSCases()},
	}
	switch o.cases {
	case "all":
	case "echo":
		all = all[:1]
	case "nfs":
		all = all[1:]
	default:
		return nil, fmt.Errorf("--cases %s: want echo, nfs or all", o.cases)
	}
	n := 0
	for i := range all {
		all[i].cases = slices.DeleteFunc(all[i].cases, func(c bench.Case) bool { return !strings.Contains(c.Name, o.only) })
		n += len(all[i].cases)
	}
	if n == 0 {
		return nil, fmt.Errorf("--only %s: no case has this in its name", o.only)
	}
	return all, nil
}

func (o *peersOptions) measure(ctx context.Context, l *bench.Loader, sections []section, baseline int, report *bench.Report, errOut io.Writer) error {
	for _, s := range sections {
		all := bench.Comparisons{Title: s.title}
		for _, c := range s.cases {
			c.Load.Duration, c.Load.Warmup, c.Load.Timeout = o.load.Duration, o.load.Warmup, o.load.Timeout
			fmt.Fprintf(errOut, "%s\n", c.Name)
			cmp, err := bench.Compare(ctx, l, c, o.targets, baseline, o.rounds, progress(errOut))
			if err != nil {
				return err
			}
			if err := cmp.Print(errOut); err != nil {
				return err
			}
			all.Of = append(all.Of, cmp)
		}
		report.Sections = append(report.Sections, all)
	}
	return nil
}

// write writes the page, to a file in one step.
func (o *peersOptions) write(out io.Writer, report *bench.Report) error {
	if o.asJSON {
		var all []*comparisonJSON
		for _, s := range report.Sections {
			for _, c := range s.Of {
				all = append(all, newComparisonJSON(c))
			}
		}
		if err := json.NewEncoder(out).Encode(all); err != nil || o.out == "" {
			return err
		}
	}
	if o.out == "" {
		return report.Markdown(out)
	}
	f, err := os.CreateTemp(filepath.Dir(o.out), ".bench-peers-*")
	if err != nil {
		return err
	}
	err = errors.Join(report.Markdown(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), o.out)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
