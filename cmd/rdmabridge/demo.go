//go:build !nodemo

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
)

func newDemoCommand() *cobra.Command {
	var a demo.Addresses
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run an in-memory NFS server behind TCP and RDMA; needs no setup",
		Long: `Demo runs an empty NFSv3 server in memory and puts a bridge in front of it. A Call
travels over TCP to the bridge, over RDMA (iWARP, in this process) to a second
listener of the bridge, and over TCP to the server. Demo prints the commands that
mount the file system or copy files with libnfs. Where another process has one of its
ports, demo takes a free one and says so, unless a flag names the port.

Demo runs until it receives SIGTERM or SIGINT. The files are lost then.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ports := demoPorts(cmd.Flags(), &a)
			for i := range ports {
				if err := ports[i].check(); err != nil {
					return err
				}
			}
			for i := range ports {
				if err := ports[i].choose(cmd.ErrOrStderr()); err != nil {
					return cli.Failed(err)
				}
			}
			signals, stop := notify()
			defer stop()
			return cli.Failed(runDemo(a, cmd.OutOrStdout(), cmd.ErrOrStderr(), signals, nil))
		},
	}
	cmd.Flags().StringVar(&a.TCP, "tcp", "127.0.0.1:12049", "accept NFS and MOUNT clients over TCP at `ADDRESS`")
	cmd.Flags().StringVar(&a.RDMA, "rdma", "127.0.0.1:20049", "accept NFS and MOUNT clients over RDMA at `ADDRESS`")
	cmd.Flags().StringVar(&a.Admin, "admin", "127.0.0.1:9090", "serve metrics and status over HTTP at `ADDRESS`, or none")
	return cmd
}

// runDemo runs the demo at the addresses a until a signal. When the bridge is ready,
// it prints help on out and passes the addresses to started, which may be nil.
func runDemo(a demo.Addresses, out, errOut io.Writer, signals <-chan os.Signal, started func(demo.Addresses, *bridge)) (err error) {
	var stop func() error
	if a.NFS, stop, err = demo.Start(errOut); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if a.RDMA, err = demo.ChoosePort(a.RDMA); err != nil {
		return err
	}
	a.Control = control.DemoPath() // a bridge on this host keeps its own
	text, err := a.Config()
	if err != nil {
		return err
	}
	own := known
	own.Environment = false // the flags say what differs
	c, err := configs.Load(text, own)
	if err != nil {
		return fmt.Errorf("demo: %w\nin%s", err, text)
	}
	sink := logsink.NewQueued(errOut, translate.Log(c.Log))
	defer sink.Close()
	return service{config: c, log: sink.Logger(), sink: sink, signals: signals, started: func(b *bridge) error {
		if err := b.waitReady(10 * time.Second); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		a.TCP, a.Admin = demo.Reachable(b.proxy.Addr("front")), ""
		if b.admin != nil {
			a.Admin = demo.Reachable(b.admin.Addr())
		}
		if err := a.Help(out); err != nil {
			return err
		}
		if started != nil {
			started(a, b)
		}
		return nil
	}}.run()
}
