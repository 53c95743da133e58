package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"text/template"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

const (
	initSidecar = "sidecar"
	initGateway = "gateway"
	initReverse = "reverse"
)

// An initPlan is what init writes a configuration from.
type initPlan struct {
	storage   string // HOST or HOST:PORT
	transport string // of the storage
	clients   string // networks, with commas
	use       string // initSidecar, initGateway or initReverse
	export    string // for mounts
}

var initTemplate = template.Must(template.New("init").Parse(`# {{if .Sidecar}}A bridge beside one application, which mounts {{.Host}}.{{else if .Mounts}}A bridge for the mounts of this host.{{else if .Reverse}}A bridge between clients with RDMA and one storage.{{else}}A bridge between many clients and one storage.{{end}} Made by rdmabridge {{.Made}}.
# rdmabridge check -c FILE reports mistakes; configs/rdmabridge.yaml shows every setting.
listeners:
{{- if .Reverse}}
  - name: nfs-rdma
    address: "{{.Listen}}" # clients connect here over RDMA{{if not .Provider}}: by iWARP, which needs no adapter here{{end}}
    transport: rdma
{{- with .Provider}}
    provider: {{.}}
{{- end}}
    upstream: storage
{{- with .Allow}}
    allow: [{{.}}] # nobody else may connect
{{- end}}
    privileged: any # Linux connects over RDMA from ports above 1023
{{- if .Mountd}}
  - name: mount
    address: "{{.ListenMount}}" # NFSv3 clients use MOUNT over TCP
    upstream: mountd
{{- with .Allow}}
    allow: [{{.}}]
{{- end}}
    privileged: any
{{- end}}
{{else}}
  - name: nfs
    address: "{{.Listen}}" # clients connect here over TCP{{if .Sidecar}}; a container without root may listen above 1023{{end}}
    upstream: storage
{{- if .Mountd}}
    routes:
      - {program: mount, upstream: mountd} # NFSv3 clients use MOUNT, which storage serves over TCP
{{- end}}
{{- with .Allow}}
    allow: [{{.}}] # nobody else may connect
{{- end}}
{{- if .Mounts}}
    privileged: required # root's mounts; other users of this host may not send Calls
{{- end}}
{{- if or .Sidecar .Mounts}}
    limits: {connections: 64}
{{- end}}
{{end}}
upstreams:
  - name: storage
    transport: {{.Transport}}
{{- if and .Provider (eq .Transport "rdma")}}
    provider: {{.Provider}}
{{- end}}
    endpoints: ["{{.Endpoint}}"] # its exports must allow the address of this bridge, and have the option insecure
{{- if .Mountd}}
  - name: mountd
    transport: tcp
    endpoints: ["{{.Mountd}}"] # what "rpcinfo -p" on the storage says of mountd; unused by NFSv4
{{- end}}
{{if or .Sidecar .Mounts}}
memory: {budget: 256MiB} # of all messages
{{end}}
admin: {address: "{{.Admin}}"} # /metrics, /livez, /readyz and a status page
{{- if or .LogLevel .LogFormat}}
log: {level: "{{or .LogLevel "info"}}", format: "{{or .LogFormat "auto"}}"}
{{- end}}
`))

// An initConfig is what the templates of init print, and serve without a file.
type initConfig struct {
	Made                                             string // by which command
	Sidecar, Reverse, Mounts                         bool   // Mounts: for those of this host, by rdmabridge mount
	Host, Port, Listen, ListenMount, Allow           string
	Transport, Endpoint, Mountd, Export, Where, Unit string
	Admin                                            string

	Provider, LogLevel, LogFormat string // "" for the default; init has no other
}

// yaml returns the configuration.
func (v *initConfig) yaml() ([]byte, error) {
	var text bytes.Buffer
	err := initTemplate.Execute(&text, v)
	return text.Bytes(), err
}

// quoteNetworks makes a list of YAML of networks with commas.
func quoteNetworks(s string) (string, error) {
	var networks []string
	for _, n := range strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' }) {
		if err := configs.CheckNetwork(n); err != nil {
			return "", fmt.Errorf("--clients: %w", err)
		}
		networks = append(networks, fmt.Sprintf("%q", n))
	}
	return strings.Join(networks, ", "), nil
}

func (p *initPlan) checkUse() error {
	if p.use != initSidecar && p.use != initGateway && p.use != initReverse {
		return fmt.Errorf("--as: %q is not possible here; write %s, %s or %s", p.use, initSidecar, initGateway, initReverse)
	}
	return nil
}

// endpoint returns where the storage listens, at the usual port unless another is said.
func (p *initPlan) endpoint() (string, error) {
	port := configs.UsualPort(configs.Transport(p.transport))
	at := p.storage
	if _, _, err := net.SplitHostPort(at); err != nil {
		at = net.JoinHostPort(strings.Trim(at, "[]"), strconv.Itoa(port))
	}
	if err := configs.CheckServer(at, port); err != nil {
		return "", fmt.Errorf("--storage: %w", err)
	}
	return at, nil
}

// values checks the answers. An error is about a flag.
func (p *initPlan) values() (v initConfig, err error) {
	v = initConfig{Made: "init", Admin: "127.0.0.1:9090", Sidecar: p.use == initSidecar, Reverse: p.use == initReverse, Transport: p.transport, Export: p.export, Where: "/mnt/nfs", Unit: "mnt-nfs.mount"}
	if err := p.checkUse(); err != nil {
		return v, err
	}
	switch {
	case p.transport != "rdma" && p.transport != "tcp":
		return v, fmt.Errorf("--transport: %q is not possible here; write rdma or tcp", p.transport)
	case !strings.HasPrefix(p.export, "/"):
		return v, fmt.Errorf("--export: %q is not an absolute path; write one such as /export", p.export)
	}
	if v.Endpoint, err = p.endpoint(); err != nil {
		return v, err
	}
	v.Mountd = net.JoinHostPort(hostOf(v.Endpoint), strconv.Itoa(configs.PortMountd))
	if v.Sidecar {
		v.Host, v.Port, v.Allow = "127.0.0.1", "12049", "127.0.0.0/8"
		v.Listen = net.JoinHostPort(v.Host, v.Port)
		return v, nil
	}
	every := "0.0.0.0"
	if strings.Contains(p.clients, ":") { // some are at addresses of IPv6
		every = "[::]"
	}
	v.Port = "2049"
	if v.Reverse {
		v.Port, v.ListenMount = "20049", fmt.Sprint(every, ":", configs.PortMountd)
	}
	v.Listen = every + ":" + v.Port
	if v.Host, err = os.Hostname(); err != nil {
		return v, err
	}
	v.Allow, err = quoteNetworks(p.clients)
	return v, err
}

// config returns the configuration, which is one that check accepts.
func (p *initPlan) config() ([]byte, error) {
	v, err := p.values()
	if err != nil {
		return nil, err
	}
	text, err := v.yaml()
	if err != nil {
		return nil, cli.Failed(err)
	}
	own := known
	own.Environment = false
	if _, err := configs.Load(text, own); err != nil {
		return nil, fmt.Errorf("these answers give no configuration: %w", err)
	}
	return text, nil
}

var mountsTemplate = template.Must(template.New("mounts").Parse(`{{range .Versions}}NFSv{{.Version}}, as root on {{if $.Sidecar}}this host or in this pod{{else}}a client{{end}}:

  mount -t nfs -o {{.Options}} {{$.Host}}:{{$.Export}} {{$.Where}}

in /etc/fstab:

  {{$.Host}}:{{$.Export}} {{$.Where}} nfs {{.Options}},_netdev{{if $.Sidecar}},x-systemd.requires={{$.Service}}{{end}} 0 0

or in /etc/systemd/system/{{$.Unit}}:

  [Unit]
{{- if $.Sidecar}}
  Requires={{$.Service}}
  After={{$.Service}}
{{- else}}
  Wants=network-online.target
  After=network-online.target
{{- end}}
  [Mount]
  What={{$.Host}}:{{$.Export}}
  Where={{$.Where}}
  Type=nfs
  Options={{.Options}},_netdev
  [Install]
  WantedBy=remote-fs.target

{{end}}{{if .Reverse}}Clients need an RDMA device that speaks iWARP; without an adapter: rdma link add siw0 type siw netdev eth0
{{end}}NFSv4 mounts / where the storage has fsid=0 at the export.{{if .All}} With clientaddr=0.0.0.0 the server does not call clients of
NFSv4.0 back past the bridge.{{end}} Mount hard, which is the default: with soft, a program is told of errors while the bridge restarts.
{{if .Sidecar}}{{.Service}} comes with the packages, and reads its file in /etc/rdmabridge.
{{else}}Write a name or an address of this host that clients know in place of {{.Host}}.
{{end}}{{if not .All}}The same command with --all says it for NFSv4.1, NFSv4.0 and NFSv3, too.
{{end}}`))

// mounts prints how clients mount with NFS 4.2, or with each version. A sidecar's mounts need the unit service.
func (p *initPlan) mounts(out io.Writer, service string, all bool) error {
	v, err := p.values()
	if err != nil {
		return err
	}
	type version struct{ Version, Options string }
	common, mount := "proto=tcp,port="+v.Port, ",mountproto=tcp,mountport="+v.Port
	if v.Reverse {
		common, mount = "proto=rdma,port="+v.Port, fmt.Sprint(",mountproto=tcp,mountport=", configs.PortMountd)
	}
	versions := []version{
		{"4.2", "vers=4.2," + common},
		{"4.1", "vers=4.1," + common},
		{"4.0", "vers=4.0," + common + ",clientaddr=0.0.0.0"},
		{"3", "vers=3," + common + mount + ",nolock"},
	}
	if !all {
		versions = versions[:1]
	}
	return mountsTemplate.Execute(out, struct {
		initConfig
		Service  string
		All      bool
		Versions []version
	}{v, service, all, versions})
}
