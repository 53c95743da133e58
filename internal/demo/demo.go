// Package demo provides what rdmabridge demo needs beside a bridge: an NFSv3 server
// whose files are in memory, and the configuration that puts the bridge in front of
// it twice.
package demo

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"text/template"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// configTemplate is the demo's configuration. One process is both bridges: a Call
// goes over TCP to listener front, over RDMA (iWARP) to listener back, and over TCP
// to the NFS server. The routes name the only versions that the server has, so the
// bridge answers Calls of other versions itself.
var configTemplate = template.Must(template.New("config").Parse(`
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
control: {path: "{{or .Control "none"}}"}
log: {level: info, format: console}
drain: {timeout: 5s}
`))

// helpTemplate says how to use a running demo.
var helpTemplate = template.Must(template.New("help").Parse(`
An empty NFSv3 server, in memory, behind TCP behind RDMA (iWARP):

  you -> {{.TCP}} TCP -> rdmabridge -> {{.RDMA}} RDMA -> rdmabridge -> NFS server

Mount it (Linux, as root):

  mount -t nfs -o vers=3,proto=tcp,port={{.Port}},mountport={{.Port}},mountproto=tcp,nolock {{.Host}}:/ /mnt

Or use it without root, with libnfs (Debian: libnfs-utils):

  nfs-cp README.md 'nfs://{{.Host}}//hello?nfsport={{.Port}}&mountport={{.Port}}'
  nfs-ls           'nfs://{{.Host}}/?nfsport={{.Port}}&mountport={{.Port}}'
  nfs-cat          'nfs://{{.Host}}//hello?nfsport={{.Port}}&mountport={{.Port}}'

{{with .Admin}}Status, metrics and health are at http://{{.}}/
{{end}}Press Ctrl-C to stop. The files are lost then.

`))

// Addresses are the addresses of a demo, each HOST:PORT but for that of commands.
type Addresses struct {
	TCP   string // of the listener for TCP
	RDMA  string // of the listener for RDMA
	Admin string // of the admin server; "none" in Config and "" in Help if there is none
	NFS   string // of the NFS server

	Control string // path of the control socket; "" for none
}

// Config returns the configuration of the bridge in front of a.NFS, as YAML.
func (a Addresses) Config() ([]byte, error) {
	var text bytes.Buffer
	err := configTemplate.Execute(&text, a)
	return text.Bytes(), err
}

// RDMAEndpoint is the address at which the bridge connects to its own RDMA listener.
func (a Addresses) RDMAEndpoint() string { return Reachable(a.RDMA) }

// Help writes how to mount the file system, how to use it without root, and where
// the status page is.
func (a Addresses) Help(w io.Writer) error {
	host, port, err := net.SplitHostPort(a.TCP)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // an IPv6 address, in URLs and for mount alike
	}
	return helpTemplate.Execute(w, struct {
		Addresses
		Host, Port string
	}{a, host, port})
}

// ChoosePort replaces port 0 in addr with a free port. Another process may bind the
// port before the demo does; the demo then fails with "address already in use".
func ChoosePort(addr string) (string, error) {
	if _, port, err := net.SplitHostPort(addr); err != nil || port != "0" {
		return addr, nil // loading the configuration reports an address that is wrong
	}
	l, err := loop.Listen(addr)
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// Reachable returns an address to connect to for a listener at addr: it replaces an
// unspecified host with 127.0.0.1.
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
