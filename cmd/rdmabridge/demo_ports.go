//go:build !nodemo

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A demoPort is an address at which the demo listens.
type demoPort struct {
	flag    string  // that names it
	given   bool    // whether the flag is on the command line
	address *string // which choose may change
	port    int     // the default
}

// demoPorts returns the addresses of a, which are those of flags.
func demoPorts(flags *pflag.FlagSet, a *demo.Addresses) []demoPort {
	ports := []demoPort{{flag: "tcp", address: &a.TCP}, {flag: "rdma", address: &a.RDMA}, {flag: "admin", address: &a.Admin}}
	for i := range ports {
		p := &ports[i]
		f := flags.Lookup(p.flag)
		p.given = f.Changed
		_, port, _ := net.SplitHostPort(f.DefValue)
		p.port, _ = strconv.Atoi(port)
	}
	return ports
}

// none reports whether there is to be no such listener.
func (p *demoPort) none() bool { return p.flag == "admin" && *p.address == "none" }

// check returns why the address is none, in the terms of the flag.
func (p *demoPort) check() error {
	if p.none() {
		return nil
	}
	if err := configs.CheckAddress(*p.address, p.port); err != nil {
		return fmt.Errorf("--%s: %w", p.flag, err)
	}
	return nil
}

// choose takes a free port if another process has the default one, and says so on out.
func (p *demoPort) choose(out io.Writer) error {
	if p.none() {
		return nil
	}
	l, err := loop.Listen(*p.address)
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("demo: --%s: no interface of this host has the address of %s: compare \"ip address\" (%w)", p.flag, *p.address, err)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("demo: --%s: %w", p.flag, err)
	}
	host, port, _ := net.SplitHostPort(*p.address)
	n, _ := strconv.ParseUint(port, 10, 16)
	who := "another process"
	if pid, name := listenerAt("/proc", uint16(n)); pid != 0 {
		who = fmt.Sprintf("process %d (%s)", pid, name)
	}
	if p.given {
		return fmt.Errorf("demo: --%s %s: %s listens at port %s already; end it, give another port, or leave the flag out", p.flag, *p.address, who, port)
	}
	if *p.address, err = demo.ChoosePort(net.JoinHostPort(host, "0")); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "demo: %s listens at %s already; taking %s (--%s)\n", who, net.JoinHostPort(host, port), *p.address, p.flag)
	return err
}
