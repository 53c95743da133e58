package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func newCompareCommand() *cobra.Command {
	var f loadFlags
	var pids [2]pidFlag
	targets := []bench.Target{{Name: "a"}, {Name: "b"}}
	var rounds int
	cmd := &cobra.Command{
		Use:   "compare --a ADDR --b ADDR",
		Short: "Measure two addresses in turn and print the ratios of b to a",
		Long: `Compare sends the same load to two addresses in turn, for a number of rounds, and
prints the figures of the second as ratios to those of the first. It divides figures
of the same round only, so that other work on the machine affects both alike.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkRounds(rounds); err != nil {
				return err
			}
			for _, t := range targets {
				if err := checkTarget(t.Name, t.Address); err != nil {
					return err
				}
			}
			l, err := f.start(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := cli.Interruptible()
			defer stop()
			for i := range targets {
				targets[i].Processes = bench.Processes(pids[i])
			}
			c, err := bench.Compare(ctx, l, bench.Case{Name: "compare", Load: f.load}, targets, 0, rounds, bench.Progress(cmd.ErrOrStderr()))
			if err == nil && f.asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(c)
			} else if err == nil {
				err = c.Print(cmd.OutOrStdout())
			}
			if err == nil && len(c.Failures) > 0 {
				err = fmt.Errorf("%d runs failed", len(c.Failures))
			}
			return advised(errors.Join(err, l.Close()), f.transport, "")
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&targets[0].Address, "a", "", "the first `ADDRESS`, the baseline")
	cmd.Flags().StringVar(&targets[1].Address, "b", "", "the second `ADDRESS`")
	cmd.Flags().Var(&pids[0], "a-pid", "also measure the CPU time of these processes behind a: 17 or 17+18")
	cmd.Flags().Var(&pids[1], "b-pid", "also measure the CPU time of these processes behind b: 17 or 17+18")
	cmd.Flags().IntVar(&rounds, "rounds", 9, "number of rounds; each runs both addresses once")
	cmd.Flags().DurationVar(&f.load.Duration, "duration", 500*time.Millisecond, "how long to measure in each run")
	cli.Required(cmd, "a", "b")
	return cmd
}
