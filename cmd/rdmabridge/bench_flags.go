package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// transportFlags choose between TCP and RDMA.
type transportFlags struct{ transport, provider, crc, fpdu string }

func (t *transportFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.transport, "transport", "tcp", "tcp or rdma")
	cmd.Flags().StringVar(&t.provider, "provider", configs.ProviderIWARP, "of rdma: "+strings.Join(providerNames(), " or "))
	cmd.Flags().StringVar(&t.crc, "crc", "on", "of iWARP: on, or off, which only counts if the peer agrees")
	cmd.Flags().StringVar(&t.fpdu, "fpdu", "emss", "of iWARP: emss or max")
}

// open makes the provider, or returns nil for TCP.
func (t *transportFlags) open(log zerolog.Logger) (fabric.Provider, error) {
	var w configs.IWARP
	switch t.crc {
	case "on":
		w.CRC = configs.On
	case "off":
		w.CRC = configs.Off
	default:
		return nil, fmt.Errorf("--crc %s: want on or off", t.crc)
	}
	switch t.fpdu {
	case "emss":
	case "max":
		w.FPDU = configs.FPDUMax
	default:
		return nil, fmt.Errorf("--fpdu %s: want emss or max", t.fpdu)
	}
	switch t.transport {
	case "tcp":
		return nil, nil
	case "rdma":
		return toolProvider(t.provider, w, log)
	}
	return nil, fmt.Errorf("--transport %s: want tcp or rdma", t.transport)
}

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
		if f.load.Provider, err = f.open(log); err != nil {
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

// pidFlag is process ids on the command line: 17, or 17+18.
type pidFlag bench.Processes

func (p *pidFlag) Type() string { return "PID" }

func (p *pidFlag) String() string {
	var s []string
	for _, pid := range *p {
		s = append(s, strconv.Itoa(pid))
	}
	return strings.Join(s, "+")
}

func (p *pidFlag) Set(v string) error {
	*p = nil
	for f := range strings.SplitSeq(v, "+") {
		pid, err := strconv.Atoi(f)
		if err != nil || pid <= 0 {
			return fmt.Errorf("%q is not a process id", f)
		}
		*p = append(*p, pid)
	}
	return nil
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
