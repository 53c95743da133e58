package main

import (
	"bufio"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// explainFlags are the command line of explain.
type explainFlags struct {
	hex         string
	config      string
	callInline  sizeFlag
	replyInline sizeFlag
	json        bool
	max         int
}

func newExplainCommand() *cobra.Command {
	f := explainFlags{callInline: 4096, replyInline: 4096}
	cmd := &cobra.Command{
		Use:   "explain [--hex HEX | FILE]",
		Short: "Say how Calls would be carried, and why",
		Long: `Explain reads RPC messages and says of each Call what it is, what of it may be
placed directly, how long its Reply can get, and in which shape the bridge would
carry it over RDMA; of each Reply, to which Call it is and where its data belong.

FILE is a capture of tcpdump (pcap or pcapng) with RPC over TCP or RPC-over-RDMA
on iWARP; or one RPC message, raw or in hex, with or without record marks or a
Transport header. Without FILE, or with -, it is read from standard input.

    tcpdump -i any -s 0 -w nfs.pcap tcp port 2049
    rdmabridge explain nfs.pcap

Exit codes: 0 explained, also what is malformed; 1 FILE cannot be read; 2 the
command line is wrong.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := newExplainer(cmd, &f)
			if err != nil {
				return err
			}
			in, err := explainInput(cmd, &f, args)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			if f.json {
				e.print = newJSONPrinter(out)
			} else {
				e.print = newTextPrinter(out)
			}
			err = e.explain(in)
			if flush := out.Flush(); err == nil {
				err = flush
			}
			return failed(err)
		},
	}
	cmd.Flags().StringVar(&f.hex, "hex", "", "the message in `HEX`, white space and # comments allowed")
	cmd.Flags().Var(&f.callInline, "inline-call", "inline threshold of Calls")
	cmd.Flags().Var(&f.replyInline, "inline-reply", "inline threshold of Replies")
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "take thresholds and limits of the first RDMA upstream in `FILE`")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object for each message, one a line")
	cmd.Flags().IntVar(&f.max, "max", 0, "end after so many messages; 0 for all")
	return cmd
}

// newExplainer checks the flags.
func newExplainer(cmd *cobra.Command, f *explainFlags) (*explainer, error) {
	if f.max < 0 {
		return nil, fmt.Errorf("--max %d: want 0 or more", f.max)
	}
	var limits ulb.Limits
	source := ""
	if f.config != "" {
		c, err := loadConfig(f.config)
		if err != nil {
			return nil, failed(err)
		}
		limits = ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)}
		found := false
		for i := range c.Upstreams {
			u := &c.Upstreams[i]
			if !u.RDMA() {
				continue
			}
			found, source = true, fmt.Sprintf("%s, upstream %s", f.config, u.Name)
			if !cmd.Flags().Changed("inline-call") {
				f.callInline = sizeFlag(u.Inline.Call)
			}
			if !cmd.Flags().Changed("inline-reply") {
				f.replyInline = sizeFlag(u.Inline.Reply)
			}
			break
		}
		if !found {
			return nil, failed(fmt.Errorf("%s: no upstream has transport rdma", f.config))
		}
	}
	for _, v := range []struct {
		name string
		size sizeFlag
	}{{"inline-call", f.callInline}, {"inline-reply", f.replyInline}} {
		if v.size < rpcrdma.DefaultInline || v.size > rpcrdma.MaxInline {
			return nil, fmt.Errorf("--%s %s: want %d to %d octets", v.name, v.size.String(), rpcrdma.DefaultInline, rpcrdma.MaxInline)
		}
	}
	e := &explainer{
		registry: ulb.NewRegistry(limits), sessions: nfs.NewSessions(),
		callInline: int(f.callInline), replyInline: int(f.replyInline),
		source: source, max: f.max,
		calls: make(map[callKey]*knownCall),
	}
	nfs.Register(e.registry)
	return e, nil
}

// errEnough ends the explanation when there are as many messages as asked for.
var errEnough = errors.New("enough")

// A printer prints explanations as they are made.
type printer interface {
	begin(*header) error
	message(*message) error
	end(*summary) error
}

// explain explains all of in.
func (e *explainer) explain(in *input) error {
	h := header{
		Kind: "input", Format: in.format, Octets: in.octets, InlineCall: e.callInline, InlineReply: e.replyInline,
		MaxIO: e.registry.Limits().MaxIO, MaxReply: e.registry.Limits().MaxReply, From: e.source,
	}
	if in.capture != nil {
		h.Packets = in.capture.Packets
		if !in.capture.First.IsZero() {
			h.First, h.Last = &in.capture.First, &in.capture.Last
		}
	}
	if err := e.print.begin(&h); err != nil {
		return err
	}
	var err error
	if in.capture != nil {
		err = e.explainCapture(in.capture)
	} else {
		err = e.explainRaw(in)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return e.print.end(e.summarise(in, err != nil))
}

// show numbers m and prints it.
func (e *explainer) show(m *message) error {
	if e.max > 0 && e.count == e.max {
		return errEnough
	}
	e.count++
	m.Number = e.count
	switch m.Kind {
	case kindCall:
		e.callCount++
	case kindReply:
		e.replyCount++
	case kindMalformed:
		e.malformed++
	case kindCut:
		e.cut++
	}
	return e.print.message(m)
}
