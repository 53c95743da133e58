package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func newLoadCommand() *cobra.Command {
	var f loadFlags
	var pids pidFlag
	cmd := &cobra.Command{
		Use:   "load --target ADDR",
		Short: "Send Calls to a server or bridge and measure the Replies",
		Long: `Load keeps a number of Calls outstanding on each of many connections, or starts
Calls at a rate, and prints throughput and latency. Lengths are those of whole RPC
messages, without record marks. GB are 10^9 octets of Calls and Replies together.
The first wrong Reply stops the run.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTarget("target", f.load.Target); err != nil {
				return err
			}
			l, err := f.start(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := cli.Interruptible()
			defer stop()
			f.load.Processes = bench.Processes(pids).Family()
			r, err := l.Run(ctx, f.load)
			if err := errors.Join(err, l.Close()); err != nil {
				return advised(err, f.transport, "")
			}
			if f.asJSON {
				return cli.Failed(json.NewEncoder(cmd.OutOrStdout()).Encode(r))
			}
			return cli.Failed(r.Print(cmd.OutOrStdout()))
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.load.Target, "target", "", "send Calls to the server or bridge at `ADDRESS`")
	cmd.Flags().DurationVar(&f.load.Duration, "duration", 2*time.Second, "how long to measure")
	cmd.Flags().Var(&pids, "pid", "also measure the CPU time of these processes and their children: 17 or 17+18")
	cli.Required(cmd, "target")
	return cmd
}
