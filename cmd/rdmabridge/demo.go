package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

// demoConfig is the demo's configuration: the bridge twice in one process. A Call
// goes TCP, bridge, RDMA over iWARP, bridge, TCP, NFS server. NFS versions that
// the server does not have are refused by the routes.
var demoConfig = template.Must(template.New("demo").Parse(`
listeners:
  - name: front
    address: "{{.TCP}}"
    transport: tcp
    routes:
      - {program: nfs, versions: [3], upstream: rdma}
      - {program: mount, versions: [3], upstream: rdma}
  - name: back
    address: "{{.RDMA}}"
    transport: rdma
    routes:
      - {program: nfs, versions: [3], upstream: server}
      - {program: mount, versions: [3], upstream: server}
upstreams:
  - name: rdma
    transport: rdma
    provider: iwarp
    endpoints: ["{{.RDMAEndpoint}}"]
  - name: server
    transport: tcp
    endpoints: ["{{.NFS}}"]
    pool: {connections: 4}
memory: {budget: 512MiB}
admin: {address: "{{.Admin}}"}
log: {level: info, format: console}
drain: {timeout: 5s}
`))

// demoHelp is printed when the demo is ready.
var demoHelp = template.Must(template.New("help").Parse(`
An empty NFSv3 server, in memory, behind TCP behind RDMA (iWARP):

  you -> {{.TCP}} TCP -> rdmabridge -> {{.RDMA}} RDMA -> rdmabridge -> NFS server

Mount it (Linux, as root):

  mount -t nfs -o vers=3,proto=tcp,port={{.Port}},mountport={{.Port}},mountproto=tcp,nolock {{.Host}}:/ /mnt

Or use it without root, with libnfs (Debian: libnfs-utils):

  nfs-cp README.md 'nfs://{{.Host}}//hello?nfsport={{.Port}}&mountport={{.Port}}'
  nfs-ls           'nfs://{{.Host}}/?nfsport={{.Port}}&mountport={{.Port}}'
  nfs-cat          'nfs://{{.Host}}//hello?nfsport={{.Port}}&mountport={{.Port}}'

{{with .Admin}}Status, metrics and health are at http://{{.}}/
{{end}}Ctrl-C ends it, files and all.

`))

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

// demoAddresses is what the templates are filled with.
type demoAddresses struct {
	TCP, RDMA, RDMAEndpoint, Admin, NFS, Host, Port string
}

// runDemo serves until a signal. started, which may be nil, is told the addresses
// once everything is connected.
func runDemo(o demoOptions, out, errOut io.Writer, signals <-chan os.Signal, started func(demoAddresses, *bridge)) (err error) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := serveDemoNFS(server, newDemoFS()); !errors.Is(err, net.ErrClosed) {
			fmt.Fprintf(errOut, "demo: NFS server: %v\n", err)
		}
	}()
	defer func() {
		err = errors.Join(err, server.Close())
		<-served
	}()
	a := demoAddresses{TCP: o.TCP, RDMA: o.RDMA, Admin: o.Admin, NFS: server.Addr().String()}
	if a.RDMA, err = fixPort(o.RDMA); err != nil {
		return err
	}
	a.RDMAEndpoint = reachable(a.RDMA)
	var text bytes.Buffer
	if err := demoConfig.Execute(&text, a); err != nil {
		return err
	}
	c, err := configs.Load(text.Bytes(), known)
	if err != nil {
		return fmt.Errorf("demo: %w\nin%s", err, text.String())
	}
	return serve(c, newLog(errOut, c.Log), signals, func(b *bridge) error {
		if err := waitReady(b, 10*time.Second); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		a.TCP = reachable(b.proxy.Addr("front"))
		if b.admin != nil {
			a.Admin = reachable(b.admin.addr)
		} else {
			a.Admin = ""
		}
		if a.Host, a.Port, err = net.SplitHostPort(a.TCP); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		if strings.Contains(a.Host, ":") {
			a.Host = "[" + a.Host + "]" // IPv6, in URLs and for mount alike
		}
		if err := demoHelp.Execute(out, a); err != nil {
			return err
		}
		if started != nil {
			started(a, b)
		}
		return nil
	})
}

// fixPort chooses a port where addr leaves it open with 0. Somebody else may take
// it before we do; then the demo says so and ends.
func fixPort(addr string) (string, error) {
	if _, port, err := net.SplitHostPort(addr); err != nil || port != "0" {
		return addr, nil // what is wrong with it, the configuration will say
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// reachable is an address at which a listener's addr can be connected to.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func waitReady(b *bridge, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		err := b.proxy.Ready()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
