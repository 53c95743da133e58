package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

// A bridgeLine is a bridge without a file: what the flags of serve say.
type bridgeLine struct {
	from, to string // URLs such as tcp://0.0.0.0:2049
	mount    string // HOST:PORT of the storage's MOUNT, none, or "" to ask its rpcbind
	provider string
	clients  string
	print    bool
	unmounts bool // whether the bridge ends when no mount of this host needs it
}

// lineFlags are the flags that need --from and --to.
var lineFlags = []string{"mount", "provider", "clients", "print-config", "until-unmounted"}

// register adds the flags to cmd, which takes a configuration file in their place.
func (l *bridgeLine) register(cmd *cobra.Command, files *[]string) {
	f := cmd.Flags()
	f.StringVar(&l.from, "from", "", "without a file: accept clients at `URL`, such as tcp://0.0.0.0:2049 or rdma://0.0.0.0:20049")
	f.StringVar(&l.to, "to", "", "without a file: forward to the storage at `URL`, such as rdma://10.1.0.5 or tcp://10.1.0.5")
	f.StringVar(&l.mount, "mount", "", "with --to: where the storage serves MOUNT over TCP, `HOST:PORT` or none (default: what its rpcbind says)")
	f.StringVar(&l.provider, "provider", "", "with --to: the `PROVIDER` of rdma://, iwarp or ibverbs (default iwarp)")
	f.StringVar(&l.clients, "clients", "", "with --from: the `NETWORKS` that may connect, such as 10.0.0.0/8,192.0.2.7 (default: all)")
	f.BoolVar(&l.print, "print-config", false, "with --from and --to: print the file that they stand for")
	f.BoolVar(&l.unmounts, "until-unmounted", false, "with --from and --to: end when no NFS mount of this host needs the bridge any more; for root's mounts alone, as rdmabridge mount starts it")
	completeWords(cmd, "provider", configs.ProviderIWARP, configs.ProviderIBVerbs)
	needsFile := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if l.from == "" {
			if l.to != "" {
				return errors.New("--from is missing: where clients connect, such as --from tcp://0.0.0.0:2049")
			}
			for _, name := range lineFlags {
				if f.Changed(name) {
					return fmt.Errorf("--%s needs --from and --to: rdmabridge %s", name, cmd.Use)
				}
			}
			return needsFile(cmd, args)
		}
		switch {
		case l.to == "":
			return errors.New("--to is missing: the storage, such as --to rdma://10.1.0.5")
		case f.Changed("takeover"):
			return errors.New("--takeover needs a file, with handover.path")
		case len(args) > 0 || len(*files) > 0:
			return fmt.Errorf("--from and the file %s: write one of the two", append(*files, args...)[0])
		}
		return nil
	}
}

// run runs the bridge, or prints the file that it stands for.
func (l *bridgeLine) run(cmd *cobra.Command) error {
	text, c, warning, err := l.config(cmd.Context(), cmd.Flags(), strconv.Itoa(configs.PortRPCBind))
	if err != nil {
		return err
	}
	if !l.print {
		s := service{config: c}
		if l.unmounts {
			s.started = endUnmounted
		}
		return runLogged(cmd, s, warning)
	}
	if warning != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+warning)
	}
	_, err = cmd.OutOrStdout().Write(text)
	return cli.Failed(err)
}

// config returns the file that the flags stand for, and the configuration in it, which flags override. It asks the
// storage's rpcbind at a port for MOUNT. The warning is "" or says what is missing.
func (l *bridgeLine) config(ctx context.Context, flags *pflag.FlagSet, rpcbindPort string) (text []byte, c *configs.Config, warning string, err error) {
	v := initConfig{Made: "serve --from " + l.from + " --to " + l.to}
	var listens string
	if listens, v.Listen, err = splitURL("from", l.from); err != nil {
		return nil, nil, "", err
	}
	if v.Transport, v.Endpoint, err = splitURL("to", l.to); err != nil {
		return nil, nil, "", err
	}
	v.Host = hostOf(v.Endpoint)
	v.Provider = l.provider
	if v.Reverse = listens == "rdma"; v.Reverse {
		v.ListenMount = net.JoinHostPort(hostOf(v.Listen), strconv.Itoa(configs.PortMountd))
	}
	if v.Provider != "" && !v.Reverse && v.Transport != "rdma" {
		return nil, nil, "", errors.New("--provider needs rdma:// in --from or in --to")
	}
	if v.Allow, err = quoteNetworks(l.clients); err != nil {
		return nil, nil, "", err
	}
	if v.Mounts = l.unmounts; v.Mounts && (v.Reverse || net.ParseIP(hostOf(v.Listen)).String() != "127.0.0.1") {
		return nil, nil, "", errors.New("--until-unmounted needs --from tcp://127.0.0.1:PORT, which mounts of this host use")
	}
	if l.mount != "none" {
		v.Mountd = l.mount
	}
	v.Admin, v.LogLevel, v.LogFormat = flagOr(flags, "admin-address", "127.0.0.1:9090"), flagOr(flags, "log-level", ""), flagOr(flags, "log-format", "")
	if text, c, err = l.load(v, flags); err != nil || l.mount != "" {
		return text, c, "", err
	}
	if v.Mountd, warning, err = askForMount(ctx, v.Host, rpcbindPort); err != nil {
		return nil, nil, "", cli.Failed(err)
	}
	text, c, err = l.load(v, flags)
	return text, c, warning, err
}

// load returns the file of v and what is in it.
func (l *bridgeLine) load(v initConfig, flags *pflag.FlagSet) ([]byte, *configs.Config, error) {
	text, err := v.yaml()
	if err != nil {
		return nil, nil, cli.Failed(err)
	}
	c, err := configs.Load(text, knownWith(flags))
	if err != nil {
		return nil, nil, ofFlags(err)
	}
	return text, c, nil
}

// ofFlags names the flags in place of the settings of the file, which nobody has seen.
func ofFlags(err error) error {
	var problems configs.Problems
	if !errors.As(err, &problems) {
		return err
	}
	var lines []string
	for _, p := range problems {
		line := p.Summary()
		if p.File == "" {
			switch {
			case strings.HasSuffix(p.Path, ".provider"):
				line = "--provider: " + p.Text
			case strings.HasPrefix(p.Path, "listeners"):
				line = "--from: " + p.Text
			case strings.HasPrefix(p.Path, "upstreams[0]"):
				line = "--to: " + p.Text
			case strings.HasPrefix(p.Path, "upstreams[1]"):
				line = "--mount: " + p.Text
			}
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// splitURL returns the transport and host:port of a URL, with the port of NFS if it has none.
func splitURL(flag, s string) (transport, address string, err error) {
	transport, rest, _ := strings.Cut(s, "://")
	if transport != "tcp" && transport != "rdma" {
		return "", "", fmt.Errorf("--%s: %q is not possible here; write tcp://HOST:PORT or rdma://HOST:PORT, where the port may be left out", flag, s)
	}
	if host, export, found := strings.Cut(strings.TrimSuffix(rest, "/"), "/"); found {
		return "", "", fmt.Errorf("--%s: %q has the path of an export; write %s://%s, and mount /%s on the clients", flag, s, transport, strings.TrimSuffix(host, ":"), export)
	} else if rest = host; rest == "" {
		return "", "", fmt.Errorf("--%s: %q has no host; write one such as %s://10.1.0.5", flag, s, transport)
	}
	port := configs.UsualPort(configs.Transport(transport))
	if _, _, err := net.SplitHostPort(rest); err != nil {
		rest = net.JoinHostPort(strings.Trim(rest, "[]"), strconv.Itoa(port))
	}
	if err := configs.CheckAddress(rest, port); err != nil {
		return "", "", fmt.Errorf("--%s: %w", flag, err)
	}
	return transport, rest, nil
}

// askForMount returns where the storage serves MOUNT. It returns "" and a warning if the storage has no rpcbind or no
// MOUNT, as a server for NFSv4 alone, and an error if nobody can tell.
func askForMount(ctx context.Context, host, rpcbindPort string) (address, warning string, err error) {
	at := net.JoinHostPort(host, rpcbindPort)
	port, err := rpcbind.Ask(ctx, at, oncrpc.ProgramMount, 3)
	const advice = "say where it is with --mount HOST:PORT, or --mount none for NFSv4 alone"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", fmt.Sprintf("%s has no rpcbind that says where MOUNT is: clients of NFSv3 cannot mount; %s", host, advice), nil
	case err != nil:
		return "", "", fmt.Errorf("the rpcbind of the storage, at %s, does not say where MOUNT is: %w; %s", at, err, advice)
	case port == 0:
		return "", fmt.Sprintf("the rpcbind of %s knows no MOUNT: clients of NFSv3 cannot mount; %s", host, advice), nil
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), "", nil
}

// hostOf returns the host of an address with a port.
func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// flagOr returns the value of a flag, or other if it is empty.
func flagOr(flags *pflag.FlagSet, name, other string) string {
	if f := flags.Lookup(name); f != nil && f.Value.String() != "" {
		return f.Value.String()
	}
	return other
}
