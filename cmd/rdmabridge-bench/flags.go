package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// transportFlags are the flags that choose between TCP and RDMA.
type transportFlags struct{ transport, provider, crc, fpdu string }

func (t *transportFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.transport, "transport", "tcp", "tcp or rdma")
	cmd.Flags().StringVar(&t.provider, "provider", configs.ProviderIWARP, "RDMA provider: "+strings.Join(providerNames(), " or "))
	cmd.Flags().StringVar(&t.crc, "crc", "on", "CRCs of iWARP: on or off; off takes effect only if the peer agrees")
	cmd.Flags().StringVar(&t.fpdu, "fpdu", "emss", "length of iWARP FPDUs: emss, one TCP segment, or max")
}

// opener checks the flags. It returns nil for TCP.
func (t *transportFlags) opener(log zerolog.Logger) (providerOpener, error) {
	var o iwarp.Options
	switch t.crc {
	case "on":
	case "off":
		o.CRCOff = true
	default:
		return nil, fmt.Errorf("--crc: %q is not possible here; write on or off", t.crc)
	}
	switch t.fpdu {
	case "emss":
	case "max":
		o.FPDU = iwarp.FPDUMax
	default:
		return nil, fmt.Errorf("--fpdu: %q is not possible here; write emss or max", t.fpdu)
	}
	switch t.transport {
	case "tcp":
		return nil, nil
	case "rdma":
		return newOpener(t.provider, o, log)
	}
	return nil, fmt.Errorf("--transport: %q is not possible here; write tcp or rdma", t.transport)
}

// loaderFlags are the flags of every command that makes a bench.Loader.
type loaderFlags struct {
	loops  int
	budget cli.SizeFlag
	asJSON bool
}

func (f *loaderFlags) add(cmd *cobra.Command) {
	f.budget = 1 << 30
	cmd.Flags().IntVar(&f.loops, "loops", 0, "number of event loops of the load; 0 for two, or for one on one CPU")
	cmd.Flags().Var(&f.budget, "budget", "most memory that messages of a load over RDMA may use")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// newLoader makes the loader. Its log goes to errOut.
func (f *loaderFlags) newLoader(errOut io.Writer) (*bench.Loader, error) {
	if err := checkLoops(f.loops, f.budget); err != nil {
		return nil, err
	}
	l, err := bench.NewLoader(bench.LoaderOptions{Loops: f.loops, Budget: int64(f.budget), Log: loadLog(errOut)})
	return l, advised(err, "", "")
}

// loadLog makes the log of a load.
func loadLog(errOut io.Writer) zerolog.Logger {
	return newLog(errOut, zerolog.WarnLevel)
}

// loadFlags are the flags that describe one load.
type loadFlags struct {
	transportFlags
	loaderFlags
	load              bench.Load
	call, reply, size cli.SizeFlag
	delay             time.Duration
	tlsCA, tlsName    string
}

func (f *loadFlags) add(cmd *cobra.Command) {
	f.call, f.reply, f.size = 100, 100, 64<<10
	f.transportFlags.add(cmd)
	f.loaderFlags.add(cmd)
	s := cmd.Flags()
	s.IntVar(&f.load.Conns, "conns", 1, "number of connections that carry Calls")
	s.IntVar(&f.load.Depth, "depth", 1, "Calls outstanding on each connection")
	s.IntVar(&f.load.Idle, "idle", 0, "number of further connections, which carry no Call")
	s.Var(&f.call, "call", "length of a Call, the whole RPC message")
	s.Var(&f.reply, "reply", "length of a Reply, the whole RPC message")
	s.DurationVar(&f.delay, "delay", 0, "ask the server to wait so long before each Reply")
	s.StringVar(&f.load.Work.Mix, "mix", "", "send these Calls instead of echo, by weight: nfs3:read=50,write=30,getattr=20; or null")
	s.Var(&f.size, "size", "octets of data of each READ and WRITE of a mix")
	s.Float64Var(&f.load.Rate, "rate", 0, "start so many Calls a second; 0: start a Call after each Reply")
	s.DurationVar(&f.load.Warmup, "warmup", 100*time.Millisecond, "how long to run before measuring")
	s.DurationVar(&f.load.Timeout, "timeout", 10*time.Second, "how long to wait for connections and for the last Replies")
	s.BoolVar(&f.load.Full, "full", false, "check all data of each Reply, not only its first and last octets")
	s.StringVar(&f.tlsCA, "tls-ca", "", "PEM `FILE` with the CAs of a target tls://ADDRESS, or rpctls://ADDRESS with the probe of RFC 9289")
	s.StringVar(&f.tlsName, "tls-name", "localhost", "`NAME` that the certificate of such a target has")
}

// readTLS reads the CAs for targets with TLS.
func (f *loadFlags) readTLS() error {
	if f.tlsCA == "" {
		return nil
	}
	b, err := os.ReadFile(f.tlsCA)
	if err != nil {
		return fmt.Errorf("--tls-ca: %w; name a file of certificates in PEM", err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: f.tlsName}
	if !c.RootCAs.AppendCertsFromPEM(b) {
		return fmt.Errorf("--tls-ca: %s has no certificate in PEM; name a file that has", f.tlsCA)
	}
	f.load.TLS = c
	return nil
}

// start completes f.load from the flags and makes the loader.
func (f *loadFlags) start(errOut io.Writer) (l *bench.Loader, err error) {
	open, err := f.opener(loadLog(errOut))
	if err != nil {
		return nil, err
	}
	if f.delay < 0 || f.delay > 10*time.Second {
		return nil, cli.NotWithin("delay", f.delay, 0, 10*time.Second)
	}
	if err := f.readTLS(); err != nil {
		return nil, err
	}
	w := &f.load.Work
	w.Call, w.Reply, w.Size, w.Delay = int(f.call), int(f.reply), int(f.size), uint32(f.delay.Microseconds())
	if w.Call < bench.MinEchoCall && w.Mix == "" {
		return nil, cli.NotWithin("call", w.Call, bench.MinEchoCall, "4MiB")
	}
	if w.Reply < bench.MinEchoReply && w.Mix == "" {
		return nil, cli.NotWithin("reply", w.Reply, bench.MinEchoReply, "4MiB")
	}
	if l, err = f.newLoader(errOut); err != nil || open == nil {
		return l, err
	}
	if f.load.Provider, err = open(l.Memory); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// A pidFlag is a list of process ids on the command line: 17 or 17+18.
type pidFlag bench.Processes

func (p *pidFlag) Type() string { return "PID" }

func (p *pidFlag) String() string {
	var s []string
	for _, pid := range *p {
		s = append(s, strconv.Itoa(pid))
	}
	return strings.Join(s, "+")
}

func (p *pidFlag) Set(v string) error {
	*p = nil
	for f := range strings.SplitSeq(v, "+") {
		pid, err := strconv.Atoi(f)
		if err != nil || pid <= 0 {
			return fmt.Errorf("%q is not the id of a process; write a number above 0", f)
		}
		*p = append(*p, pid)
	}
	return nil
}

// A targetFlag is a list of NAME=ADDRESS or NAME=ADDRESS@PID+PID, separated by commas.
type targetFlag []bench.Target

func (t *targetFlag) Type() string { return "NAME=ADDRESS[@PID]" }

func (t *targetFlag) String() string {
	var s []string
	for _, x := range *t {
		s = append(s, x.Name+"="+x.Address)
	}
	return strings.Join(s, ",")
}

func (t *targetFlag) Set(v string) error {
	for item := range strings.SplitSeq(v, ",") {
		name, rest, ok := strings.Cut(item, "=")
		address, pids, withPIDs := strings.Cut(rest, "@")
		if !ok || name == "" {
			return fmt.Errorf("%q has no name; write NAME=HOST:PORT or NAME=HOST:PORT@PID", item)
		}
		if err := configs.CheckServer(address, serverPort); err != nil {
			return err
		}
		x := bench.Target{Name: name, Address: address}
		if withPIDs {
			var p pidFlag
			if err := p.Set(pids); err != nil {
				return err
			}
			x.Processes = bench.Processes(p)
		}
		if slices.ContainsFunc(*t, func(y bench.Target) bool { return y.Name == name }) {
			return fmt.Errorf("%q: another target has the name %s; write another name", item, name)
		}
		*t = append(*t, x)
	}
	return nil
}

// checkRounds validates --rounds.
func checkRounds(n int) error {
	if n < 1 || n > 1000 {
		return cli.NotWithin("rounds", n, 1, 1000)
	}
	return nil
}
