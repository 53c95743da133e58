// Package demo is an NFS server in memory, and what it takes to put it behind TCP and
// RDMA in one process: the verb of rdmabridge demo.
package demo

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"text/template"
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

// Addresses are those of a demo. The templates are filled with them.
type Addresses struct {
	TCP, RDMA, RDMAEndpoint, Admin, NFS, Host, Port string
}

// Config is the configuration, as YAML.
func (a Addresses) Config() ([]byte, error) {
	var text bytes.Buffer
	err := demoConfig.Execute(&text, a)
	return text.Bytes(), err
}

// Help prints what can be done with the demo.
func (a Addresses) Help(w io.Writer) error { return demoHelp.Execute(w, a) }

// FixPort chooses a port where addr leaves it open with 0. Somebody else may take
// it before we do; then the demo says so and ends.
func FixPort(addr string) (string, error) {
	if _, port, err := net.SplitHostPort(addr); err != nil || port != "0" {
		return addr, nil // what is wrong with it, the configuration will say
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// Reachable is an address at which a listener's addr can be connected to.
func Reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
