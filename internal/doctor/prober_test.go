package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

var (
	nfs3  = Program{oncrpc.ProgramNFS, 3, "nfs"}
	nfs4  = Program{oncrpc.ProgramNFS, 4, "nfs"}
	mount = Program{oncrpc.ProgramMount, 3, "mount"}
)

func newProber(t *testing.T) *Prober {
	t.Helper()
	p, err := NewProber(ulb.Limits{MaxIO: 1 << 20, MaxReply: 1<<20 + 8<<10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil { // a lease that is outstanding, for example
			t.Error(err)
		}
	})
	return p
}

// ask asks a target and compares the findings: severity and code of each.
func ask(t *testing.T, target Target, want ...string) (Endpoint, Findings) {
	t.Helper()
	target.Upstream, target.Connect = "u", 10*time.Second
	if target.Call == 0 {
		target.Call = 10 * time.Second
	}
	if target.Programs == nil {
		target.Programs = []Program{nfs3}
	}
	if target.RDMA {
		target.Provider, target.Name, target.Credits, target.CallInline, target.ReplyInline = proxytest.IWARP(iwarp.Options{}), "iwarp", 32, 8192, 4096
	}
	e, fs := newProber(t).Ask(t.Context(), &target)
	var got []string
	for _, f := range fs {
		got = append(got, f.Severity.String()+" "+f.Code)
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("findings %q, want %q: %+v", got, want, fs)
	}
	return e, fs
}

// serveRDMA starts a server that grants 16 credits and accepts and sends 4096 octets inline.
func serveRDMA(t *testing.T, b proxytest.Behaviour) (addr string) {
	t.Helper()
	arena, err := regmem.New(regmem.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	reg := ulb.NewRegistry(ulb.Limits{MaxIO: 1 << 20, MaxReply: 1<<20 + 8<<10})
	nfs.Register(reg)
	l := iwarptest.NewLoop()
	s, err := proxytest.ListenRDMA(proxytest.IWARP(iwarp.Options{}), []loop.Loop{l}, "127.0.0.1:0", 16, arena, reg, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		testkit.Eventually(t, "the end of the server's connections", func() bool { return s.Connections() == 0 })
		l.Stop()
		_ = arena.Close() // fails with Calls that were never answered
	})
	return s.Addr()
}

func serveTCP(t *testing.T, b proxytest.Behaviour) (addr string) {
	t.Helper()
	s, err := proxytest.ListenTCP("127.0.0.1:0", b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Addr()
}

func TestAskRDMA(t *testing.T) {
	e, _ := ask(t, Target{RDMA: true, Address: serveRDMA(t, proxytest.Behaviour{}), Programs: []Program{nfs3, mount}},
		"note endpoint-inline", "note endpoint-credits")
	if !e.Connected || e.Credits != 16 || e.CallInline != 4096 || e.ReplyInline != 4096 || len(e.Answers) != 2 || e.Answers[1].Answer != "success" {
		t.Errorf("%+v", e)
	}
	if p := e.PrivateData; p == nil || p.SendSize != 4096 || p.ReceiveSize != 4096 || !strings.HasPrefix(p.Hex, "f6ab0e1801") {
		t.Errorf("private data %+v", p)
	}
}

func TestAskTCP(t *testing.T) {
	e, _ := ask(t, Target{Address: serveTCP(t, proxytest.Behaviour{}), Programs: []Program{nfs3, mount}})
	if !e.Connected || len(e.Answers) != 2 || e.Answers[0].Answer != "success" || e.Transport != "tcp" {
		t.Errorf("%+v", e)
	}
}

// TestAskPrograms: the server has neither MOUNT nor NFSv4 at this port.
func TestAskPrograms(t *testing.T) {
	refuse := func(c *oncrpc.Call) ([]byte, bool) {
		switch {
		case c.Program == oncrpc.ProgramMount:
			return oncrpc.AppendAccepted(nil, c.XID, oncrpc.ProgramUnavailable), true
		case c.Version == 4:
			return oncrpc.AppendProgramMismatch(nil, c.XID, 2, 3), true
		}
		return nil, false
	}
	e, fs := ask(t, Target{Address: serveTCP(t, proxytest.Behaviour{Intercept: refuse}), Programs: []Program{nfs3, nfs4, mount}},
		"note endpoint-program", "warning endpoint-program")
	if len(e.Answers) != 3 || e.Answers[1].Answer != "version unavailable: has 2 to 3" || e.Answers[2].Answer != "program unavailable" {
		t.Errorf("%+v", e.Answers)
	}
	if len(fs) == 2 && fs[1].Fix[0] != "rpcinfo -p 127.0.0.1" {
		t.Errorf("%+v", fs[1])
	}
}

// TestAskSilent: servers that accept connections and answer nothing.
func TestAskSilent(t *testing.T) {
	silent := proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) { return nil, c.Version == 4 }}
	for _, target := range []Target{
		{Address: serveTCP(t, silent)},
		{RDMA: true, Address: serveRDMA(t, silent)},
	} {
		target.Programs, target.Call = []Program{nfs3, nfs4}, time.Second
		if e, _ := ask(t, target, "error endpoint-silent"); !e.Connected || len(e.Answers) != 1 {
			t.Errorf("%+v", e)
		}
	}
}

// TestAskNobody: nothing listens, or no host has the name.
func TestAskNobody(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		_, fs := ask(t, Target{RDMA: rdma, Address: testkit.DeadAddr(t)}, "error endpoint-refused")
		if len(fs) == 1 && (!strings.Contains(fs[0].Text, "nothing listens") || rdma != strings.Contains(fs[0].Fix[1], "portlist")) {
			t.Errorf("%+v", fs)
		}
		ask(t, Target{RDMA: rdma, Address: "a..b:2049"}, "error endpoint-unreachable") // no such name can be
	}
}

// TestAskOther: servers of another protocol, and one that ends every connection.
func TestAskOther(t *testing.T) {
	http := testkit.Serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		_, _ = bufio.NewReader(c).Peek(1)
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		c.Close()
	})
	for _, tt := range []struct {
		target Target
		says   string
	}{
		{Target{Address: http}, "answers as HTTP, and the upstream has transport: tcp"},
		{Target{RDMA: true, Address: http}, "answers as HTTP, and the upstream has transport: rdma"},
		{Target{RDMA: true, Address: serveTCP(t, proxytest.Behaviour{})}, "answers as NFS over TCP, and the upstream has transport: rdma"},
		{Target{Address: serveRDMA(t, proxytest.Behaviour{})}, "answers as RDMA over iWARP (MPA), and the upstream has transport: tcp"},
	} {
		if _, fs := ask(t, tt.target, "error endpoint-protocol"); len(fs) != 1 || !strings.Contains(fs[0].Text, tt.says) {
			t.Errorf("%+v lacks %q", fs, tt.says)
		}
	}
}

// TestAskSource: the connection comes from the source that the configuration has.
func TestAskSource(t *testing.T) {
	addr := serveTCP(t, proxytest.Behaviour{})
	taken, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	source := netip.MustParseAddr("127.0.0.9")
	ask(t, Target{Address: addr, Source: source, Low: port, High: port}, "warning endpoint-source")
	e, _ := ask(t, Target{Address: addr, Source: source, Low: port - 1, High: port})
	if got, want := e.Local, netip.AddrPortFrom(source, port-1).String(); got != want {
		t.Errorf("the connection came from %s, want %s", got, want)
	}
	_, fs := ask(t, Target{Address: addr, Source: netip.MustParseAddr("192.0.2.77")}, "error endpoint-source")
	if len(fs) == 1 && !strings.Contains(fs[0].Text, "does not have the source address 192.0.2.77") {
		t.Errorf("%+v", fs)
	}
	if os.Getuid() != 0 {
		ask(t, Target{Address: addr, Low: 665, High: 1023}, "error privileged-port")
	}
}

// TestNoPrivateData: without private data of RFC 8797 the thresholds are 1024.
func TestNoPrivateData(t *testing.T) {
	target := Target{RDMA: true, CallInline: 4096, ReplyInline: 4096, Credits: 8}
	for b, want := range map[string]string{
		"":                                 "endpoint-no-private-data",
		"\xf6\xab\x0e\x18\x02\x00\x03\x03": "endpoint-no-private-data",
		"\xf6\xab\x0e\x18\x01\x00\x03\x03": "",
	} {
		var fs Findings
		target.judgeConnection(&Endpoint{PrivateData: privateData([]byte(b)), CallInline: 4096, ReplyInline: 4096, Credits: 8}, &fs)
		if (want == "") != (len(fs) == 0) || want != "" && fs[0].Code != want {
			t.Errorf("%x: %+v, want %s", b, fs, want)
		}
	}
}

// TestDialErrors: errors of providers that the tests do not have.
func TestDialErrors(t *testing.T) {
	target := Target{RDMA: true, Name: "ibverbs", Address: "10.0.0.1:20049"}
	for _, tc := range []struct {
		err  error
		code string
	}{
		{fmt.Errorf("ibverbs: resolve route: %w", syscall.ENODEV), "endpoint-unreachable"},
		{fmt.Errorf("ibverbs: resolve address: %w", syscall.EINVAL), "endpoint-unreachable"},
		{fmt.Errorf("ibverbs: %w", fabric.ErrRejected), "endpoint-refused"},
		{fmt.Errorf("ibverbs: %w", context.DeadlineExceeded), "endpoint-unreachable"},
		{errors.New("ibverbs: odd"), "endpoint-refused"},
	} {
		var fs Findings
		target.judgeDial(tc.err, &fs)
		if len(fs) != 1 || fs[0].Code != tc.code || fs[0].Severity != Error {
			t.Errorf("%v: %+v, want %s", tc.err, fs, tc.code)
		}
	}
}

// TestPaddedPrivateData: RoCE has zeros after the private data.
func TestPaddedPrivateData(t *testing.T) {
	for b, want := range map[string]string{
		"\xf6\xab\x0e\x18\x01\x00\x03\x03" + strings.Repeat("\x00", 188): "f6ab0e1801000303",
		"\xf6\xab\x0e\x18\x01\x00\x00\x00" + strings.Repeat("\x00", 48):  "f6ab0e1801000000",
	} {
		if p := privateData([]byte(b)); p == nil || p.Hex != want {
			t.Errorf("%x: %+v, want %s", b, p, want)
		}
	}
}
