package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
)

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
