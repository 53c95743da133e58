//go:build !nodemo

package main

import (
	"bytes"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestDemoFlags: what is wrong with a flag is said of the flag.
func TestDemoFlags(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--tcp", "nonsense"}, cli.ExitUsage, `--tcp: "nonsense" has no port; write nonsense:12049`},
		{[]string{"--rdma", "127.0.0.1:nfs"}, cli.ExitUsage, `--rdma: "127.0.0.1:nfs" has the port by its name; write its number: 127.0.0.1:2049`},
		{[]string{"--admin", "9090"}, cli.ExitUsage, `--admin: "9090" has no host; write 127.0.0.1:9090`},
		{[]string{"--tcp", l.Addr().String(), "--rdma", "127.0.0.1:0"}, cli.ExitFailed, "--tcp " + l.Addr().String() + ": process "},
		{[]string{"--tcp", "192.0.2.1:2049"}, cli.ExitFailed, `--tcp: no interface of this host has the address of 192.0.2.1:2049: compare "ip address"`},
	} {
		code, out, errOut := run(append([]string{"demo"}, tc.args...)...)
		if code != tc.code || !strings.Contains(errOut, tc.want) || strings.Contains(errOut, "listeners") || out != "" {
			t.Errorf("%v: %d %q %q, want %q", tc.args, code, out, errOut, tc.want)
		}
	}
}

// TestDemoPorts: a default that another process has is replaced, and a flag is not.
func TestDemoPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, free := l.Addr().String(), testkit.FreeAddr(t)
	a := demo.Addresses{TCP: taken, RDMA: free, Admin: "none"}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range []string{"tcp", "rdma", "admin"} {
		flags.String(name, "127.0.0.1:1", "")
	}
	var out bytes.Buffer
	for _, p := range demoPorts(flags, &a) {
		if err := p.choose(&out); err != nil {
			t.Error(err)
		}
	}
	if a.TCP == taken || !strings.HasPrefix(a.TCP, "127.0.0.1:") || a.RDMA != free || a.Admin != "none" {
		t.Errorf("%+v, and %s was taken", a, taken)
	}
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "listens at "+taken+" already; taking "+a.TCP+" (--tcp)") {
		t.Errorf("said: %q", s)
	}
}

// TestDemoEnds: the end of a demo is no trouble, although the bridge closes a connection to itself.
func TestDemoEnds(t *testing.T) {
	log, signals, ended := new(testkit.Log), make(chan os.Signal, 1), make(chan error, 1)
	started := make(chan struct{})
	go func() {
		o := demo.Addresses{TCP: "127.0.0.1:0", RDMA: testkit.FreeAddr(t), Admin: "none"}
		ended <- runDemo(o, new(bytes.Buffer), log, signals, func(demo.Addresses, *bridge) { close(started) })
	}()
	<-started
	signals <- syscall.SIGINT
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := log.String(); strings.Contains(s, "WRN") || strings.Contains(s, "ERR") || !strings.Contains(s, "INF stopped") {
		t.Errorf("the log:\n%s", s)
	}
}
