package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
