package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/explain"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	hex         string
	config      []string
	listener    string
	client      explainedClient
	callInline  cli.SizeFlag
	replyInline cli.SizeFlag
	json        bool
	summary     bool
	max         int
	exports     []string
	paths       []string
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

With --config and --listener explain also says which rule of that listener matches each
Call, and why the rules before it do not. The client is the sender in the capture, if
the Call goes to the listener's port. --client names another one, as it must where FILE
has no addresses; then all Calls are said to come from it.

    rdmabridge explain -c rdmabridge.yaml --listener nfs nfs.pcap

With --export and --path explain leaves out all Calls but those about certain files. It
learns where files are from the LOOKUPs, MOUNTs and the like in FILE.

    rdmabridge explain --path '/home/**/*.log' --summary nfs.pcap

Exit codes: 0 every message was explained, malformed ones included; 1 FILE cannot be
read; 2 the command line is wrong.`,
		Args: cli.AtMost(1),
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
			return cli.Failed(err)
		},
	}
	cmd.Flags().StringVar(&f.hex, "hex", "", "explain the message in `HEX`; white space and # comments are allowed")
	cmd.Flags().Var(&f.callInline, "inline-call", "inline threshold of Calls")
	cmd.Flags().Var(&f.replyInline, "inline-reply", "inline threshold of Replies")
	cmd.Flags().StringArrayVarP(&f.config, "config", "c", nil, "use the thresholds and the pool.mode of the first RDMA upstream in `FILE`, and its chunks.io, chunks.reply and programs")
	cmd.Flags().StringVar(&f.listener, "listener", "", "say which rules of the listener `NAME` in --config match each Call")
	cmd.Flags().StringVar(&f.client.client, "client", "", "with --listener: the `CLIENT` that makes the Calls: an address, or address:port")
	cmd.Flags().StringVar(&f.client.proxy, "proxy", "", "with --listener: the `ADDRESS` of the load balancer that the client comes through")
	cmd.Flags().StringSliceVar(&f.client.identity, "identity", nil, "with --listener: `NAMES` in the client's certificate")
	cmd.Flags().StringArrayVar(&f.exports, "export", nil, "explain only Calls about files in the export `PATH`, with their Replies, as far as FILE tells where files are")
	cmd.Flags().StringArrayVar(&f.paths, "path", nil, "the same for files at `PATTERN` or below, such as '/home/*/build' or '**/*.log'")
	cmd.Flags().BoolVar(&f.summary, "summary", false, "print a table by operation, with the columns of nfsiostat, instead of the messages")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object a line, one for each message")
	cmd.Flags().IntVar(&f.max, "max", 0, "stop after so many messages; 0: explain all")
	return cmd
}

// options validates the flags.
func (f *explainFlags) options(cmd *cobra.Command) (explain.Options, error) {
	o := explain.Options{Max: f.max, JSON: f.json, Summary: f.summary}
	var err error
	if o.Files, err = names.NewFilter(f.exports, f.paths); err != nil {
		return o, fmt.Errorf("--path: %w", err)
	}
	if f.max < 0 {
		return o, fmt.Errorf("--max %d is not possible; write 0 or more", f.max)
	}
	if f.listener == "" && (f.client.client != "" || f.client.proxy != "" || len(f.client.identity) > 0) {
		return o, errors.New("--client, --proxy and --identity say whom the rules of --listener see; give --listener, too")
	}
	if f.listener != "" && len(f.config) == 0 {
		return o, errors.New("--listener names a listener of a configuration; give --config, too")
	}
	if len(f.config) == 0 {
		c := configs.Config{Chunks: configs.Chunks{IO: configs.DefaultIO}}
		o.Registry = translate.Registry(&c)
	} else {
		if err := f.loadConfig(cmd, &o); err != nil {
			return o, err
		}
	}
	for _, v := range []struct {
		name string
		size cli.SizeFlag
	}{{"inline-call", f.callInline}, {"inline-reply", f.replyInline}} {
		if v.size < rpcrdma.DefaultInline || v.size > rpcrdma.MaxInline {
			return o, cli.NotWithin(v.name, v.size.String(), configs.Size(rpcrdma.DefaultInline), configs.Size(rpcrdma.MaxInline))
		}
	}
	o.CallInline, o.ReplyInline = int(f.callInline), int(f.replyInline)
	return o, nil
}

// loadConfig takes limits, and thresholds without a flag, from --config.
func (f *explainFlags) loadConfig(cmd *cobra.Command, o *explain.Options) error {
	c, err := loadConfig(f.config, known)
	if err != nil {
		return cli.Failed(err)
	}
	if f.listener != "" {
		if o.Rules, err = f.rules(c); err != nil {
			return err
		}
	}
	o.Registry = translate.Registry(c)
	i := slices.IndexFunc(c.Upstreams, func(u configs.Upstream) bool { return u.RDMA() })
	if i < 0 {
		if f.listener != "" { // its rules are asked about, whatever its upstreams are
			return nil
		}
		return cli.Failed(fmt.Errorf("%s: no upstream has transport rdma", strings.Join(f.config, ", ")))
	}
	u := &c.Upstreams[i]
	o.Source, o.Mode = fmt.Sprintf("%s, upstream %s", strings.Join(f.config, ", "), u.Name), u.Pool.Mode
	if !cmd.Flags().Changed("inline-call") {
		f.callInline = cli.SizeFlag(u.Inline.Call)
	}
	if !cmd.Flags().Changed("inline-reply") {
		f.replyInline = cli.SizeFlag(u.Inline.Reply)
	}
	return nil
}

// rules returns the rules of --listener in c.
func (f *explainFlags) rules(c *configs.Config) (*explain.Rules, error) {
	i := slices.IndexFunc(c.Listeners, func(l configs.Listener) bool { return l.Name == f.listener })
	if i < 0 {
		var names []string
		for i := range c.Listeners {
			names = append(names, c.Listeners[i].Name)
		}
		return nil, cli.Failed(fmt.Errorf("--listener: %q is not in %s; write %s", f.listener, strings.Join(f.config, ", "), strings.Join(names, " or ")))
	}
	l := &c.Listeners[i]
	all, err := translate.Rules(l)
	if err != nil {
		return nil, cli.Failed(err)
	}
	if len(all) == 0 {
		return nil, cli.Failed(fmt.Errorf("%s: listener %s has no rules", strings.Join(f.config, ", "), f.listener))
	}
	set, err := rules.Compile(all)
	if err != nil {
		return nil, cli.Failed(err)
	}
	r := &explain.Rules{Listener: l.Name, Set: set}
	// A port that is a name, or 0, is not known here.
	if _, port, err := net.SplitHostPort(l.Address); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			r.Port = uint16(n)
		}
	}
	client, err := f.client.parse("--client")
	if err != nil {
		return nil, err
	}
	r.Client = *client
	return r, nil
}

// input reads the message of --hex, the file of args, or standard input.
func (f *explainFlags) input(cmd *cobra.Command, args []string) (*explain.Input, error) {
	if cmd.Flags().Changed("hex") {
		if len(args) > 0 {
			return nil, errors.New("--hex and FILE exclude each other; write one of them")
		}
		in, err := explain.ParseHex(f.hex)
		if err != nil {
			return nil, fmt.Errorf("--hex: %w; write two digits from 0 to f for each octet", err)
		}
		return in, nil
	}
	name, r := "standard input", cmd.InOrStdin()
	if len(args) > 0 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return nil, cli.Failed(fileError(args[0], err, "a capture"))
		}
		defer file.Close()
		name, r = args[0], file
	}
	in, err := explain.Read(r)
	if err != nil {
		return nil, cli.Failed(fileError(name, err, "a capture"))
	}
	return in, nil
}
