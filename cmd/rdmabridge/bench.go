package main

import (
	"context"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure bridges, servers and what is between them",
		Long: `Bench server answers Calls, bench load makes them and measures, bench compare and
bench peers make them in turn against several addresses. Servers speak an echo
program and NFSv3 NULL, GETATTR, READ and WRITE; every Reply is checked.`,
	}
	cmd.AddCommand(newBenchServerCommand(), newBenchLoadCommand(), newBenchCompareCommand(), newBenchPeersCommand())
	return cmd
}

// A sizeFlag is a number of octets on the command line: 100, 64KiB, 1MiB.
type sizeFlag int

func (s *sizeFlag) Type() string { return "SIZE" }

// String is what Set understands.
func (s *sizeFlag) String() string {
	v := configs.Size(*s).String()
	if octets := strings.TrimSuffix(v, "B"); !strings.HasSuffix(octets, "i") {
		return octets
	}
	return v
}

func (s *sizeFlag) Set(v string) error {
	n, err := configs.ParseSize(v)
	if err != nil {
		return err
	}
	if n > 1<<40 {
		return fmt.Errorf("%q is too large", v)
	}
	*s = sizeFlag(n)
	return nil
}

// transportFlags choose between TCP and RDMA.
type transportFlags struct{ transport, crc, fpdu string }

func (t *transportFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.transport, "transport", "tcp", "tcp or rdma")
	cmd.Flags().StringVar(&t.crc, "crc", "on", "of iWARP: on, or off, which only counts if the peer agrees")
	cmd.Flags().StringVar(&t.fpdu, "fpdu", "emss", "of iWARP: emss or max")
}

// provider is nil for TCP.
func (t *transportFlags) provider(log zerolog.Logger) (fabric.Provider, error) {
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
		return newProvider(w, 0, log), nil
	}
	return nil, fmt.Errorf("--transport %s: want tcp or rdma", t.transport)
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

// interruptible is a context that SIGTERM and SIGINT end.
func interruptible() (context.Context, func()) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
}

func newBenchServerCommand() *cobra.Command {
	var t transportFlags
	var o bench.ServerOptions
	budget, inline := sizeFlag(1<<30), sizeFlag(4096)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Answer Calls of bench load over TCP or RDMA",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Log = newLog(cmd.ErrOrStderr(), configs.Log{Level: "info", Format: configs.FormatConsole})
			if o.Provider, err = t.provider(o.Log); err != nil {
				return err
			}
			o.Budget, o.CallInline, o.ReplyInline = int64(budget), int(inline), int(inline)
			signals, stop := notify()
			defer stop()
			s, err := bench.StartServer(o)
			if err != nil {
				return failed(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening %s %s\n", t.transport, s.Addr())
			<-signals
			if err := s.Close(); err != nil {
				return failed(err)
			}
			if n := s.Wrong(); n > 0 {
				return failed(fmt.Errorf("%d calls with wrong data", n))
			}
			return nil
		},
	}
	t.add(cmd)
	cmd.Flags().StringVar(&o.Address, "listen", "127.0.0.1:20050", "`ADDRESS` to listen at")
	cmd.Flags().IntVar(&o.Credits, "credits", 128, "granted to each RDMA connection")
	cmd.Flags().Var(&inline, "inline", "RDMA inline threshold, both ways")
	cmd.Flags().IntVar(&o.Loops, "loops", 0, "event loops; 0 for one per CPU")
	cmd.Flags().Var(&budget, "budget", "memory for messages")
	cmd.Flags().BoolVar(&o.Full, "full", false, "compare all data of each Call, not only both ends")
	return cmd
}
