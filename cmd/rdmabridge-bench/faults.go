package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/faults"
)

// faultFlags are the flags of the server that make it inject faults.
type faultFlags struct {
	file string
	to   string
	tcp  string
	seed uint64
	json bool
	list bool
}

func (f *faultFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.file, "faults", "", "pass Calls on to another server and inject the faults that `FILE` describes")
	s.StringVar(&f.to, "to", "", "with --faults: the server behind, `tcp://HOST:PORT`; without it an NFSv3 server in memory")
	s.StringVar(&f.tcp, "tcp", "", "with --faults and --transport rdma: listen for TCP, too, at `ADDRESS`; MOUNT needs it")
	s.Uint64Var(&f.seed, "seed", 0, "with --faults: the seed, in place of the file's")
	s.BoolVar(&f.json, "json", false, "with --faults: log and count in JSON")
	s.BoolVar(&f.list, "list-faults", false, "list all faults and exit")
}

// check returns an error if a flag needs --faults and --faults is not there.
func (f *faultFlags) check(cmd *cobra.Command) error {
	if f.file != "" {
		return nil
	}
	for _, name := range []string{"to", "tcp", "seed", "json"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s needs --faults FILE", name)
		}
	}
	return nil
}

// serve injects faults until ctx ends. o has the options that the server has anyway.
func (f *faultFlags) serve(ctx context.Context, o faults.Options, listen, transport string, out, errOut io.Writer) (err error) {
	if f.tcp != "" {
		if err := checkListen("tcp", f.tcp); err != nil {
			return err
		}
	}
	if o.Plan, err = faults.LoadFile(f.file); err != nil {
		return err
	}
	if f.seed != 0 {
		o.Plan.Seed = f.seed
	}
	if o.Log = newLog(errOut, zerolog.InfoLevel); f.json {
		o.Log = newJSONLog(errOut)
	}
	switch {
	case o.Open == nil && f.tcp != "":
		return errors.New("--tcp: with --transport tcp the server listens for TCP at --listen")
	case o.Open == nil:
		o.TCP = listen
	default:
		o.TCP, o.RDMA = f.tcp, listen
	}
	if o.To = strings.TrimPrefix(f.to, "tcp://"); o.To == "" {
		var stop func() error
		if o.To, stop, err = serveFiles(errOut); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	} else if err := checkTarget("to", o.To); err != nil {
		return err
	}
	s, err := faults.Start(o)
	if err != nil {
		return err
	}
	if o.RDMA != "" {
		fmt.Fprintf(out, "listening %s %s\n", transport, s.RDMA())
	}
	if o.TCP != "" {
		fmt.Fprintf(out, "listening tcp %s\n", s.TCP())
	}
	fmt.Fprintf(out, "seed %d\n", s.Seed())
	<-ctx.Done()
	err = s.Close()
	if f.json {
		return errors.Join(err, json.NewEncoder(out).Encode(s.Counts()))
	}
	return errors.Join(err, faults.Summary(out, s.Counts()))
}
