package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// benchServers starts the echo service over TCP, and over RDMA behind a bridge. It returns
// both addresses.
func benchServers(t *testing.T) (direct, bridged string) {
	t.Helper()
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	start := func(o bench.ServerOptions) string {
		o.Address, o.Loops, o.Budget, o.Full, o.Log = "127.0.0.1:0", 1, 256<<20, true, log
		o.Credits, o.CallInline, o.ReplyInline = 128, 4096, 4096
		s, err := bench.StartServer(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil || s.Wrong() > 0 {
				t.Errorf("server: %v, %d calls with wrong data", err, s.Wrong())
			}
		})
		return s.Addr().String()
	}
	direct = start(bench.ServerOptions{})
	c, err := configs.Load([]byte(fmt.Sprintf(`
listeners: [{name: bench, address: "127.0.0.1:0", upstream: echo}]
upstreams: [{name: echo, transport: rdma, endpoints: ["%s"]}]
memory: {budget: 512MiB}
admin: {address: none}
loops: 1
`, start(bench.ServerOptions{Provider: proxytest.IWARP(iwarp.Options{Log: log})}))), known)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBridge(c, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Errorf("bridge: %v", err)
		}
	})
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if err := b.waitReady(testkit.Patience); err != nil {
		t.Fatal(err)
	}
	return direct, b.proxy.Addr("bench")
}

// TestBench is not parallel to other tests: it measures the CPU time of this process and
// its children, and children of other tests end while it does.
func TestBench(t *testing.T) {
	direct, bridged := benchServers(t)
	pid := fmt.Sprint(os.Getpid())
	t.Run("load", func(t *testing.T) {
		t.Parallel()
		testBenchLoad(t, bridged, pid)
	})
	t.Run("compare", func(t *testing.T) {
		t.Parallel()
		s := runBench(t, "compare", "--a", direct, "--b", bridged, "--a-pid", pid, "--b-pid", pid, "--conns", "4", "--rounds", "2")
		if !strings.Contains(s, "CPU/call") || !strings.Contains(s, "[") {
			t.Errorf("no ratios in %s", s)
		}
	})
	t.Run("peers", func(t *testing.T) {
		t.Parallel()
		page := filepath.Join(t.TempDir(), "page.md")
		runBench(t, "peers", "--target", "direct="+direct+",bridge="+bridged+"@"+pid, "--target", "nobody=127.0.0.1:1",
			"--baseline", "direct", "--only", "16 x 16", "--cases", "all", "--note", "a note", "--out", page, "--rounds", "2")
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"- a note\n", "| work | direct | bridge | nobody |", "| 100 B, 16 x 16 |", "| GETATTR, 16 x 16 |",
			"Runs that failed", "nobody: round 2: ", "load average",
		} {
			if !strings.Contains(string(b), want) {
				t.Errorf("no %q in %s", want, b)
			}
		}
	})
}

// runBench runs a verb of bench and returns what it prints. It measures for a short time at first.
// If the machine is too busy to answer a Call in that time, it tries again with longer times.
func runBench(t *testing.T, args ...string) string {
	t.Helper()
	for d := 100 * time.Millisecond; ; d *= 4 {
		var out, errOut bytes.Buffer
		all := append([]string{"bench"}, args...)
		all = append(all, "--warmup", "10ms", "--duration", d.String(), "--timeout", testkit.Patience.String())
		code := execute(all, &out, &errOut)
		if code == exitDone {
			return out.String()
		}
		if d > testkit.Patience || !strings.Contains(errOut.String(), "no call was answered") {
			t.Fatalf("%v: exit code %d: %s", all, code, errOut.String())
		}
	}
}

// testBenchLoad runs bench load against a bridge and measures the CPU time of process pid.
func testBenchLoad(t *testing.T, bridged, pid string) {
	for _, args := range [][]string{
		{"--conns", "8", "--depth", "8"},
		{"--conns", "2", "--depth", "2", "--call", "1MiB"},
		{"--conns", "2", "--depth", "2", "--reply", "1MiB"},
		{"--conns", "4", "--depth", "4", "--mix", "nfs3:read=50,write=30,getattr=20"},
		{"--rate", "500", "--conns", "2", "--idle", "10", "--delay", "1ms"},
	} {
		out := runBench(t, append([]string{"load", "--target", bridged, "--full", "--pid", pid, "--json"}, args...)...)
		var r bench.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Calls == 0 || r.CPU == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
	}{
		{"server --transport udp", "want tcp or rdma"},
		{"server --transport rdma --crc maybe", "want on or off"},
		{"server --transport rdma --provider ibverbs", "this build has no such provider; it has iwarp"},
		{"server --budget 0", "is not greater than 0"},
		{"server --to tcp://x:1", "--to needs --faults FILE"},
		{"server --seed 1", "--seed needs --faults FILE"},
		{"load", `required flag(s) "target" not set`},
		{"load --target x:1 --call 10", "at least 56 octets"},
		{"load --target x:1 --reply 10", "at least 32 octets"},
		{"load --target x:1 --pid me", "is not a process id"},
		{"load --target x:1 --delay 1m", "want 0 to 10s"},
		{"compare --a x:1 --b x:1 --rounds 0", "want 1 to 1000"},
		{"peers --target x", "want NAME=HOST:PORT"},
		{"peers --target x=y:1@z", "is not a process id"},
		{"peers --target x=y:1,x=y:1", "there is a x already"},
		{"peers --target x=y:1 --baseline z", "no such target"},
		{"peers --target x=y:1 --cases all --only nothing", "no case"},
	} {
		var out, errOut bytes.Buffer
		if code := execute(append([]string{"bench"}, strings.Fields(tc.args)...), &out, &errOut); code != exitUsage || !strings.Contains(errOut.String(), tc.want) {
			t.Errorf("bench %s: exit code %d, %q; want %q", tc.args, code, errOut.String(), tc.want)
		}
	}
}

// The provider that --provider names gets the memory that messages are in, to register it once.
func TestBenchProviderMemory(t *testing.T) {
	old := providers
	t.Cleanup(func() { providers = old })
	octets := 0
	providers = map[string]func(providerSettings) (fabric.Provider, error){
		"fake": func(s providerSettings) (fabric.Provider, error) {
			for _, x := range s.memory() {
				octets += len(x)
			}
			return nil, nil
		},
	}
	f := loadFlags{
		transportFlags: transportFlags{transport: "rdma", provider: "fake", crc: "on", fpdu: "emss"},
		loaderFlags:    loaderFlags{budget: 1 << 20}, call: 100, reply: 100,
	}
	l, err := f.start(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if octets != 1<<20 {
		t.Errorf("the provider of a load has %d octets of memory", octets)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
