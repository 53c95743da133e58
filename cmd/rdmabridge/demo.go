package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/demo"
)

// demoOptions are the addresses of a demo.
type demoOptions struct{ TCP, RDMA, Admin string }

func newDemoCommand() *cobra.Command {
	o := demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Serve an in-memory NFS server through TCP and RDMA, with nothing to set up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals, stop := notify()
			defer stop()
			return failed(runDemo(o, cmd.OutOrStdout(), cmd.ErrOrStderr(), signals, nil))
		},
	}
	cmd.Flags().StringVar(&o.TCP, "tcp", "127.0.0.1:12049", "`ADDRESS` for NFS and MOUNT over TCP")
	cmd.Flags().StringVar(&o.RDMA, "rdma", "127.0.0.1:20049", "`ADDRESS` for NFS and MOUNT over RDMA")
	cmd.Flags().StringVar(&o.Admin, "admin", "127.0.0.1:9090", "`ADDRESS` for metrics and status, or none")
	return cmd
}

// runDemo serves until a signal. started, which may be nil, is told the addresses
// once everything is connected.
func runDemo(o demoOptions, out, errOut io.Writer, signals <-chan os.Signal, started func(demo.Addresses, *bridge)) (err error) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := demo.Serve(server, demo.Options{}); !errors.Is(err, net.ErrClosed) {
			fmt.Fprintf(errOut, "demo: NFS server: %v\n", err)
		}
	}()
	defer func() {
		err = errors.Join(err, server.Close())
		<-served
	}()
	a := demo.Addresses{TCP: o.TCP, RDMA: o.RDMA, Admin: o.Admin, NFS: server.Addr().String()}
	if a.RDMA, err = demo.FixPort(o.RDMA); err != nil {
		return err
	}
	a.RDMAEndpoint = demo.Reachable(a.RDMA)
	text, err := a.Config()
	if err != nil {
		return err
	}
	c, err := configs.Load(text, known)
	if err != nil {
		return fmt.Errorf("demo: %w\nin%s", err, text)
	}
	return serve(c, newLog(errOut, c.Log), signals, func(b *bridge) error {
		if err := waitReady(b, 10*time.Second); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		a.TCP = demo.Reachable(b.proxy.Addr("front"))
		if b.admin != nil {
			a.Admin = demo.Reachable(b.admin.addr)
		} else {
			a.Admin = ""
		}
		if a.Host, a.Port, err = net.SplitHostPort(a.TCP); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		if strings.Contains(a.Host, ":") {
			a.Host = "[" + a.Host + "]" // IPv6, in URLs and for mount alike
		}
		if err := a.Help(out); err != nil {
			return err
		}
		if started != nil {
			started(a, b)
		}
		return nil
	})
}
