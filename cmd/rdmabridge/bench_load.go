package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/bench"
)

// loadFlags describe a load.
type loadFlags struct {
	transportFlags
	load              bench.Load
	call, reply, size sizeFlag
	delay             time.Duration
	loops             int
	budget            sizeFlag
	asJSON            bool
}

func (f *loadFlags) add(cmd *cobra.Command) {
	f.call, f.reply, f.size, f.budget = 100, 100, 64<<10, 1<<30
	f.transportFlags.add(cmd)
	s := cmd.Flags()
	s.IntVar(&f.load.Conns, "conns", 1, "connections")
	s.IntVar(&f.load.Depth, "depth", 1, "Calls outstanding on each connection")
	s.IntVar(&f.load.Idle, "idle", 0, "connections beside those that do nothing")
	s.Var(&f.call, "call", "length of a Call, the whole RPC message")
	s.Var(&f.reply, "reply", "length of a Reply, the whole RPC message")
	s.DurationVar(&f.delay, "delay", 0, "how long the server is to wait before each Reply")
	s.StringVar(&f.load.Work.Mix, "mix", "", "what to call instead of echo, with weights: nfs3:read=50,write=30,getattr=20; or null")
	s.Var(&f.size, "size", "data of READ and WRITE of a mix")
	s.Float64Var(&f.load.Rate, "rate", 0, "Calls started in a second; 0: each Reply starts a Call")
	s.DurationVar(&f.load.Warmup, "warmup", 100*time.Millisecond, "before measuring")
	s.DurationVar(&f.load.Timeout, "timeout", 10*time.Second, "for connecting, and for the last Replies")
	s.BoolVar(&f.load.Full, "full", false, "compare all data of each Reply, not only both ends")
	f.addLoader(cmd)
}

// addLoader adds what has nothing to do with one load.
func (f *loadFlags) addLoader(cmd *cobra.Command) {
	if f.budget == 0 {
		f.budget = 1 << 30
	}
	cmd.Flags().IntVar(&f.loops, "loops", 0, "event loops of the load; 0 for two, or one per CPU")
	cmd.Flags().Var(&f.budget, "budget", "memory for messages of a load over RDMA")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "as JSON")
}

// start makes the Loader, and fills in the load.
func (f *loadFlags) start(errOut io.Writer) (l *bench.Loader, err error) {
	log := newLog(errOut, configs.Log{Level: "warn", Format: configs.FormatConsole})
	if f.transport != "" {
		if f.load.Provider, err = f.provider(log); err != nil {
			return nil, err
		}
	}
	if f.delay < 0 || f.delay > 10*time.Second {
		return nil, errors.New("--delay: want 0 to 10s")
	}
	w := &f.load.Work
	w.Call, w.Reply, w.Size, w.Delay = int(f.call), int(f.reply), int(f.size), uint32(f.delay.Microseconds())
	if w.Call < bench.MinEchoCall && w.Mix == "" && f.transport != "" {
		return nil, fmt.Errorf("--call %d: a Call has at least %d octets", w.Call, bench.MinEchoCall)
	}
	if w.Reply < bench.MinEchoReply && w.Mix == "" && f.transport != "" {
		return nil, fmt.Errorf("--reply %d: a Reply has at least %d octets", w.Reply, bench.MinEchoReply)
	}
	if l, err = bench.NewLoader(bench.LoaderOptions{Loops: f.loops, Budget: int64(f.budget), Log: log}); err != nil {
		return nil, failed(err)
	}
	return l, nil
}

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

func required(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.MarkFlagRequired(n); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}
