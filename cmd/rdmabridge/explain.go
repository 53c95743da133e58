package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/explain"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
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
	cmd.Flags().StringVar(&f.hex, "hex", "", "the message in `HEX`, white space and # comments allowed")
	cmd.Flags().Var(&f.callInline, "inline-call", "inline threshold of Calls")
	cmd.Flags().Var(&f.replyInline, "inline-reply", "inline threshold of Replies")
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "take thresholds and limits of the first RDMA upstream in `FILE`")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object for each message, one a line")
	cmd.Flags().IntVar(&f.max, "max", 0, "end after so many messages; 0 for all")
	return cmd
}

// options checks the flags.
func (f *explainFlags) options(cmd *cobra.Command) (explain.Options, error) {
	o := explain.Options{Max: f.max, JSON: f.json}
	if f.max < 0 {
		return o, fmt.Errorf("--max %d: want 0 or more", f.max)
	}
	if f.config != "" {
		c, err := loadConfig(f.config)
		if err != nil {
			return o, failed(err)
		}
		o.Limits = ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)}
		found := false
		for i := range c.Upstreams {
			u := &c.Upstreams[i]
			if !u.RDMA() {
				continue
			}
			found, o.Source = true, fmt.Sprintf("%s, upstream %s", f.config, u.Name)
			if !cmd.Flags().Changed("inline-call") {
				f.callInline = sizeFlag(u.Inline.Call)
			}
			if !cmd.Flags().Changed("inline-reply") {
				f.replyInline = sizeFlag(u.Inline.Reply)
			}
			break
		}
		if !found {
			return o, failed(fmt.Errorf("%s: no upstream has transport rdma", f.config))
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

// input reads what the command line says.
func (f *explainFlags) input(cmd *cobra.Command, args []string) (*explain.Input, error) {
	if cmd.Flags().Changed("hex") {
		if len(args) > 0 {
			return nil, errors.New("--hex and FILE: want one of them")
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
