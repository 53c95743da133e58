package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/explain"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	hex         string
	config      string
	callInline  sizeFlag
	replyInline sizeFlag
	json        bool
	summary     bool
	max         int
}

func newExplainCommand() *cobra.Command {
	f := explainFlags{callInline: 4096, replyInline: 4096}
	cmd := &cobra.Command{
		Use:   "explain [--hex HEX | FILE]",
		Short: "Explain how the bridge would carry captured Calls over RDMA",
		Long: `Explain reads RPC messages and prints for each Call what it is, which data may be
placed directly, how long its Reply can become, which connection to the upstream it
would take and why, and in which form the bridge would send it over RDMA, with the
arithmetic. For each Reply it prints which Call it
answers and where its data belong. It opens no connection.

FILE is a capture of rdmabridge capture, or of tcpdump (pcap or pcapng) with RPC over
TCP or RPC-over-RDMA on iWARP. With --summary explain prints a table by operation: how
many there were, how long they took, and for a capture of the bridge which part of the
time was the server's (RTT) and which the bridge's. FILE may also be one RPC message, raw or in hex, with or without record marks
or a Transport header. Without FILE, or with -, explain reads standard input.

    tcpdump -i any -s 0 -w nfs.pcap tcp port 2049
    rdmabridge explain nfs.pcap

Exit codes: 0 every message was explained, malformed ones included; 1 FILE cannot be
read; 2 the command line is wrong.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			in, err := f.input(cmd, args)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			err = explain.Run(out, in, o)
			if flush := out.Flush(); err == nil {
				err = flush
			}
			return failed(err)
		},
	}
	cmd.Flags().StringVar(&f.hex, "hex", "", "explain the message in `HEX`; white space and # comments are allowed")
	cmd.Flags().Var(&f.callInline, "inline-call", "inline threshold of Calls")
	cmd.Flags().Var(&f.replyInline, "inline-reply", "inline threshold of Replies")
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "use the thresholds and the pool.mode of the first RDMA upstream in `FILE`, and its chunks.io and chunks.reply")
	cmd.Flags().BoolVar(&f.summary, "summary", false, "print a table by operation, with the columns of nfsiostat, instead of the messages")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object a line, one for each message")
	cmd.Flags().IntVar(&f.max, "max", 0, "stop after so many messages; 0: explain all")
	return cmd
}

// options validates the flags.
func (f *explainFlags) options(cmd *cobra.Command) (explain.Options, error) {
	o := explain.Options{Max: f.max, JSON: f.json, Summary: f.summary}
	if f.max < 0 {
		return o, fmt.Errorf("--max %d: want 0 or more", f.max)
	}
	if f.config != "" {
		if err := f.loadConfig(cmd, &o); err != nil {
			return o, err
		}
	}
	for _, v := range []struct {
		name string
		size sizeFlag
	}{{"inline-call", f.callInline}, {"inline-reply", f.replyInline}} {
		if v.size < rpcrdma.DefaultInline || v.size > rpcrdma.MaxInline {
			return o, fmt.Errorf("--%s %s: want %d to %d octets", v.name, v.size.String(), rpcrdma.DefaultInline, rpcrdma.MaxInline)
		}
	}
	o.CallInline, o.ReplyInline = int(f.callInline), int(f.replyInline)
	return o, nil
}

// loadConfig takes limits, and thresholds without a flag, from --config.
func (f *explainFlags) loadConfig(cmd *cobra.Command, o *explain.Options) error {
	c, err := loadConfig(f.config)
	if err != nil {
		return failed(err)
	}
	i := slices.IndexFunc(c.Upstreams, func(u configs.Upstream) bool { return u.RDMA() })
	if i < 0 {
		return failed(fmt.Errorf("%s: no upstream has transport rdma", f.config))
	}
	u := &c.Upstreams[i]
	o.Limits = ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)}
	o.Source, o.Mode = fmt.Sprintf("%s, upstream %s", f.config, u.Name), u.Pool.Mode
	if !cmd.Flags().Changed("inline-call") {
		f.callInline = sizeFlag(u.Inline.Call)
	}
	if !cmd.Flags().Changed("inline-reply") {
		f.replyInline = sizeFlag(u.Inline.Reply)
	}
	return nil
}

// input reads the message of --hex, the file of args, or standard input.
func (f *explainFlags) input(cmd *cobra.Command, args []string) (*explain.Input, error) {
	if cmd.Flags().Changed("hex") {
		if len(args) > 0 {
			return nil, errors.New("--hex and FILE exclude each other: want one of them")
		}
		in, err := explain.ParseHex(f.hex)
		if err != nil {
			return nil, fmt.Errorf("--hex: %w", err)
		}
		return in, nil
	}
	name, r := "standard input", cmd.InOrStdin()
	if len(args) > 0 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return nil, failed(err)
		}
		defer file.Close()
		name, r = args[0], file
	}
	in, err := explain.Read(r)
	if err != nil {
		return nil, failed(fmt.Errorf("%s: %w", name, err))
	}
	return in, nil
}
