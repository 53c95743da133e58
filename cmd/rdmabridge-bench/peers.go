package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// peersFlags are the flags of peers.
type peersFlags struct {
	loaderFlags
	targets          targetFlag
	baseline         string
	cases, only, out string
	matrix           bench.MatrixOptions // without Targets, Baseline and Log
}

func newPeersCommand() *cobra.Command {
	var f peersFlags
	cmd := &cobra.Command{
		Use:   "peers --target NAME=ADDR@PID ...",
		Short: "Measure several proxies with a matrix of loads and write a page of ratios",
		Long: `Peers sends each load of a matrix to all targets in turn, for a number of rounds, and
writes a page of Markdown with the ratios to one of them, the baseline. The script
deploy/bench/peers.sh starts the usual targets and runs this command.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Interruptible()
			defer stop()
			return f.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.loaderFlags.add(cmd)
	s := cmd.Flags()
	s.Var(&f.targets, "target", "proxies to compare, separated by commas; may be repeated")
	s.StringVar(&f.baseline, "baseline", "", "divide by the figures of the target `NAME`; default: the first target")
	s.StringVar(&f.cases, "cases", "echo", "run the cases of echo, nfs or all")
	s.StringVar(&f.only, "only", "", "run only the cases whose name contains `TEXT`")
	s.IntVar(&f.matrix.Rounds, "rounds", 9, "number of rounds; each runs every target once")
	s.DurationVar(&f.matrix.Duration, "duration", 500*time.Millisecond, "how long to measure in each run")
	s.DurationVar(&f.matrix.Warmup, "warmup", 100*time.Millisecond, "how long to run before measuring")
	s.DurationVar(&f.matrix.Timeout, "timeout", 10*time.Second, "how long to wait for connections and for the last Replies")
	s.StringVar(&f.out, "out", "", "write the page to `FILE`; default: standard output")
	s.StringArrayVar(&f.matrix.Notes, "note", nil, "add `TEXT` to the head of the page, such as versions; may be repeated")
	cli.Required(cmd, "target")
	return cmd
}

func (f *peersFlags) run(ctx context.Context, out, errOut io.Writer) error {
	o := f.matrix
	if err := checkRounds(o.Rounds); err != nil {
		return err
	}
	o.Targets, o.Log = f.targets, errOut
	if f.baseline != "" {
		o.Baseline = slices.IndexFunc(o.Targets, func(t bench.Target) bool { return t.Name == f.baseline })
		if o.Baseline < 0 {
			var names []string
			for _, t := range o.Targets {
				names = append(names, t.Name)
			}
			return fmt.Errorf("--baseline: %q is no target; write %s", f.baseline, strings.Join(names, " or "))
		}
	}
	sections, err := bench.Matrix(f.cases, f.only)
	if err != nil {
		return err
	}
	l, err := f.newLoader(errOut)
	if err != nil {
		return err
	}
	o.Notes = append([]string{buildInfo().String()}, o.Notes...)
	report, err := bench.CompareMatrix(ctx, l, sections, o)
	if err = errors.Join(err, l.Close()); err != nil {
		return advised(err, "tcp", "")
	}
	return cli.Failed(f.write(out, report))
}

// write writes the page to --out, or to out if there is none. With --json it writes JSON
// to out.
func (f *peersFlags) write(out io.Writer, report *bench.Report) error {
	if f.asJSON {
		if err := json.NewEncoder(out).Encode(report.All()); err != nil || f.out == "" {
			return err
		}
	}
	if f.out == "" {
		return report.Markdown(out)
	}
	return report.WriteFile(f.out)
}
