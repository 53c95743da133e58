package main

import (
	"fmt"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/faults"
)

// mostCredits is the most that package rdmaside grants to a connection.
const mostCredits = 16384

func newServerCommand() *cobra.Command {
	var t transportFlags
	var o bench.ServerOptions
	var f faultFlags
	budget, inline := cli.SizeFlag(1<<30), cli.SizeFlag(4096)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Answer the Calls of load over TCP or RDMA",
		Long: `Server answers an echo program and NFSv3 NULL, GETATTR, READ and WRITE until it
receives SIGTERM or SIGINT. It prints the address that it listens at. It exits with
1 if a Call carried wrong data.

With --faults it is a server for testing clients: it passes Calls on to a real server, which
may be a server of files in memory, and drops, delays or spoils some of them, as the rules in
a file say. It logs each fault, and at the end it prints what each rule has done.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.list {
				return faults.List(cmd.OutOrStdout())
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			if err := checkListen("listen", o.Address); err != nil {
				return err
			}
			if err := checkLoops(o.Loops, budget); err != nil {
				return err
			}
			switch {
			case o.Credits < 1 || o.Credits > mostCredits:
				return cli.NotWithin("credits", o.Credits, 1, mostCredits)
			case inline < 1<<10 || inline > 64<<10 || inline%(1<<10) != 0:
				return cli.NotWithin("inline", inline.String(), "1KiB", "64KiB, in steps of 1KiB")
			}
			o.Log = newLog(cmd.ErrOrStderr(), zerolog.InfoLevel)
			if o.Open, err = t.opener(o.Log); err != nil {
				return err
			}
			o.Budget, o.CallInline, o.ReplyInline = int64(budget), int(inline), int(inline)
			ctx, stop := cli.Interruptible()
			defer stop()
			if f.file != "" {
				return advised(f.serve(ctx, faults.Options{
					Open: o.Open, Credits: o.Credits, CallInline: o.CallInline, ReplyInline: o.ReplyInline, Loops: o.Loops, Budget: o.Budget,
				}, o.Address, t.transport, cmd.OutOrStdout(), cmd.ErrOrStderr()), t.transport, o.Address)
			}
			s, err := bench.StartServer(o)
			if err != nil {
				return advised(err, t.transport, o.Address)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening %s %s\n", t.transport, s.Addr())
			<-ctx.Done()
			if err := s.Close(); err != nil {
				return cli.Failed(err)
			}
			if n := s.Wrong(); n > 0 {
				return cli.Failed(fmt.Errorf("%d Calls carried wrong data", n))
			}
			return nil
		},
	}
	t.add(cmd)
	f.add(cmd)
	cmd.Flags().StringVar(&o.Address, "listen", "127.0.0.1:20050", "listen at `ADDRESS`")
	cmd.Flags().IntVar(&o.Credits, "credits", 128, "credits to grant to each RDMA connection")
	cmd.Flags().Var(&inline, "inline", "inline threshold of Calls and of Replies over RDMA")
	cmd.Flags().IntVar(&o.Loops, "loops", 0, "number of event loops; 0 for one per CPU")
	cmd.Flags().Var(&budget, "budget", "most memory that messages may use")
	cmd.Flags().BoolVar(&o.Full, "full", false, "check all data of each Call, not only its first and last octets")
	return cmd
}
