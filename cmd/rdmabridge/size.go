package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/sizing"
)

// sizeFlags are the flags of size.
type sizeFlags struct {
	demand    sizing.Demand
	octets    cli.SizeFlag
	largest   cli.SizeFlag
	transport string
	storage   string
}

func newSizeCommand() *cobra.Command {
	f := sizeFlags{octets: 0, largest: 1 << 20}
	cmd := &cobra.Command{
		Use:   "size --clients N {--calls N | --bytes SIZE}",
		Short: "Compute how large bridges must be, and write their configuration",
		Long: `Size computes from what clients want and what the storage gives how many credits,
connections, processors and octets of memory each bridge needs, and prints a configuration
for each of them. The formulas are in docs/scaling.md. It opens no connection.

    rdmabridge size --clients 4000 --calls 200000 --bridges 4 --spare 1 --threads 64

Clients are connections: with nconnect=4 a host has four. The bridges share all clients
evenly, and --spare of them may be away.

Exit codes: 0 the configuration meets the demand; 1 nothing does, and the problems are on
standard error; 2 the command line is wrong.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.demand.Octets, f.demand.Largest = float64(f.octets), int(f.largest)
			if f.transport != "rdma" && f.transport != "tcp" {
				return fmt.Errorf("--transport: %q is not possible here; write rdma or tcp", f.transport)
			}
			p, err := sizing.NewPlan(f.demand)
			if err != nil {
				return err
			}
			f.write(cmd.OutOrStdout(), p)
			if len(p.Problems) > 0 {
				return cli.Failed(errors.New(strings.Join(p.Problems, "\n")))
			}
			return nil
		},
	}
	d := cmd.Flags()
	d.IntVar(&f.demand.Clients, "clients", 0, "`NUMBER` of connections of clients, of all bridges together")
	d.Float64Var(&f.demand.Calls, "calls", 0, "Calls a second, of all clients together; 0: as many as --bytes needs")
	d.Var(&f.octets, "bytes", "octets of data a second, of all clients together, such as 5GiB")
	d.IntVar(&f.demand.Bridges, "bridges", 1, "number of bridges")
	d.IntVar(&f.demand.Spare, "spare", 0, "bridges of these that may be away without loss of speed")
	d.DurationVar(&f.demand.Latency, "latency", time.Millisecond, "how long the storage takes for a Call under this load")
	d.IntVar(&f.demand.Grant, "credits", 64, "credits that the storage grants to a connection; doctor shows them")
	d.IntVar(&f.demand.Connections, "connections", 0, "connections that the storage takes from all bridges together; 0: unknown")
	d.IntVar(&f.demand.Threads, "threads", 0, "nfsd threads of a Linux server, which takes 20 x (threads + 3) connections; 0: unknown")
	d.Var(&f.largest, "largest", "the longest READ or WRITE of the clients, their rsize and wsize")
	d.StringVar(&f.transport, "transport", "rdma", "rdma or tcp: how the bridges reach the storage")
	d.StringVar(&f.storage, "storage", "10.1.0.5", "the storage's host `NAME` or address")
	cli.Required(cmd, "clients")
	cmd.MarkFlagsOneRequired("calls", "bytes")
	return cmd
}

// write prints the configuration, which says itself why its numbers are what they are.
func (f *sizeFlags) write(w io.Writer, p *sizing.Plan) {
	d := &p.Demand
	fmt.Fprintf(w, "# Each of %d bridges has this file, for %d clients, %.0f Calls/s and %.3g GB/s of all together, while %d of them may be away.\n",
		d.Bridges, d.Clients, d.Calls, d.Octets/1e9, d.Spare)
	fmt.Fprintln(w, "# Where the numbers come from: docs/scaling.md")
	for _, r := range p.Reasons {
		fmt.Fprintf(w, "#   %s\n", r)
	}
	fmt.Fprintf(w, "# Give each bridge %d processors, %d MiB of memory and %d descriptors (RLIMIT_NOFILE).\n", p.Loops, p.Memory>>20, p.Descriptors)
	fmt.Fprintf(w, "# The storage has %d connections then. Clients of a bridge that ends are back after %.1f s.\n", p.AtStorage, p.Back.Seconds())
	for _, x := range p.Problems {
		fmt.Fprintf(w, "# PROBLEM: %s\n", x)
	}
	host := strings.Trim(f.storage, "[]")
	fmt.Fprintf(w, `listeners:
  - name: nfs
    address: 0.0.0.0:2049
    upstream: storage
    routes:
      - {program: mount, upstream: mountd}
    limits: {connections: %d}
upstreams:
  - name: storage
    transport: %s
    endpoints: [%q]
    pool: {connections: %d, credits: %d}
  - name: mountd
    transport: tcp
    endpoints: [%q]
chunks: {io: %s}
memory: {budget: %s}
loops: %d
admin: {address: "127.0.0.1:9090"}
`, p.Clients*5/4+16, f.transport, net.JoinHostPort(host, strconv.Itoa(configs.UsualPort(configs.Transport(f.transport)))), p.Connections, d.Grant, net.JoinHostPort(host, strconv.Itoa(configs.PortMountd)), configs.Size(d.Largest), configs.Size(p.Budget), p.Loops)
}
