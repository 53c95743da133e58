package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
)

func newBenchLoadCommand() *cobra.Command {
	var f loadFlags
	var pids pidFlag
	cmd := &cobra.Command{
		Use:   "load --target ADDR",
		Short: "Keep a server or bridge busy, and measure",
		Long: `Load keeps Calls outstanding on many connections, or starts them at a rate. Sizes
are those of whole RPC messages, without record marks; GB are 10^9 octets of
Calls and Replies together. The first Reply that is wrong ends the run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := f.start(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := interruptible()
			defer stop()
			f.load.Processes = bench.Processes(pids).Family()
			r, err := l.Run(ctx, f.load)
			if err := errors.Join(err, l.Close()); err != nil {
				return failed(err)
			}
			if f.asJSON {
				return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(r))
			}
			return failed(r.Print(cmd.OutOrStdout()))
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.load.Target, "target", "", "`ADDRESS` of a server or bridge")
	cmd.Flags().DurationVar(&f.load.Duration, "duration", 2*time.Second, "to measure")
	cmd.Flags().Var(&pids, "pid", "processes under test, whose CPU time is measured with that of their children: 17 or 17+18")
	required(cmd, "target")
	return cmd
}
