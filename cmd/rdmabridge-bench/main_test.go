package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// servers starts the echo service over TCP, and over RDMA behind a bridge. It returns both addresses.
func servers(t *testing.T) (direct, bridged string) {
	t.Helper()
	h := proxytest.NewHarness(t, 512<<20)
	start := func(o bench.ServerOptions) string {
		o.Address, o.Loops, o.Budget, o.Full, o.Log = "127.0.0.1:0", 1, 256<<20, true, h.Log
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
	far := start(bench.ServerOptions{Provider: proxytest.IWARP(iwarp.Options{Log: h.Log})})
	p := h.Proxy(
		[]settings.ListenerOptions{{Name: "near", Address: "127.0.0.1:0", Upstream: "echo"}},
		[]settings.UpstreamOptions{{
			Name: "echo", RDMA: true, Endpoints: []string{far}, Provider: proxytest.IWARP(iwarp.Options{Log: h.Log}),
		}},
	)
	return direct, p.Addr("near")
}

// TestVerbs is not parallel to other tests: it measures the CPU time of this process and
// its children, and children of other tests end while it does.
func TestVerbs(t *testing.T) {
	direct, bridged := servers(t)
	pid := fmt.Sprint(os.Getpid())
	t.Run("load", func(t *testing.T) {
		t.Parallel()
		testLoad(t, bridged, pid)
	})
	t.Run("compare", func(t *testing.T) {
		t.Parallel()
		s := runVerb(t, "compare", "--a", direct, "--b", bridged, "--a-pid", pid, "--b-pid", pid, "--conns", "4", "--rounds", "2")
		if !strings.Contains(s, "CPU/call") || !strings.Contains(s, "[") {
			t.Errorf("no ratios in %s", s)
		}
	})
	t.Run("peers", func(t *testing.T) {
		t.Parallel()
		page := filepath.Join(t.TempDir(), "page.md")
		runVerb(t, "peers", "--target", "direct="+direct+",bridge="+bridged+"@"+pid, "--target", "nobody=127.0.0.1:1",
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

// runVerb runs a verb and returns what it prints. It measures for a short time at first.
// If the machine is too busy to answer a Call in that time, it tries again with longer times.
func runVerb(t *testing.T, args ...string) string {
	t.Helper()
	for d := 100 * time.Millisecond; ; d *= 4 {
		var out, errOut bytes.Buffer
		all := append(slices.Clip(args), "--warmup", "10ms", "--duration", d.String(), "--timeout", testkit.Patience.String())
		code := execute(all, &out, &errOut)
		if code == cli.ExitDone {
			return out.String()
		}
		if d > testkit.Patience || !strings.Contains(errOut.String(), "no call was answered") {
			t.Fatalf("%v: exit code %d: %s", all, code, errOut.String())
		}
	}
}

// testLoad runs load against a bridge and measures the CPU time of process pid.
func testLoad(t *testing.T, bridged, pid string) {
	for _, args := range [][]string{
		{"--conns", "8", "--depth", "8"},
		{"--conns", "2", "--depth", "2", "--call", "1MiB"},
		{"--conns", "2", "--depth", "2", "--reply", "1MiB"},
		{"--conns", "4", "--depth", "4", "--mix", "nfs3:read=50,write=30,getattr=20"},
		{"--rate", "500", "--conns", "2", "--idle", "10", "--delay", "1ms"},
	} {
		out := runVerb(t, append([]string{"load", "--target", bridged, "--full", "--pid", pid, "--json"}, args...)...)
		var r bench.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Calls == 0 || r.CPU == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func TestUsage(t *testing.T) {
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
		{"load", `--target ADDRESS is missing: send Calls to the server or bridge at ADDRESS`},
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
		code := execute(strings.Fields(tc.args), &out, &errOut)
		if code != cli.ExitUsage || !strings.Contains(errOut.String(), tc.want) {
			t.Errorf("%s: exit code %d, %q; want %q", tc.args, code, errOut.String(), tc.want)
		}
	}
}

// The provider that --provider names gets the memory that messages are in, to register it once.
func TestProviderMemory(t *testing.T) {
	old := providers
	t.Cleanup(func() { providers = old })
	octets := 0
	providers = map[string]func(iwarp.Options, zerolog.Logger) providerOpener{
		"fake": func(iwarp.Options, zerolog.Logger) providerOpener {
			return func(memory func() [][]byte) (fabric.Provider, error) {
				for _, x := range memory() {
					octets += len(x)
				}
				return nil, nil
			}
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

// TestManPages: each command has a page with all its flags, and groff has nothing to say against it.
func TestManPages(t *testing.T) { clitest.ManPages(t, newCommand, 7) }

// TestCommandLinesInDocs checks that the command lines of README.md and docs are such that the command would run.
func TestCommandLinesInDocs(t *testing.T) {
	clitest.CommandLines(t, "../..", newCommand, map[string]int{"docs/bench.md": 2, "docs/fault-server.md": 2})
}

// TestVersion: the program says its own name.
func TestVersion(t *testing.T) {
	var out, errOut bytes.Buffer
	code := execute([]string{"version"}, &out, &errOut)
	if code != cli.ExitDone || !strings.HasPrefix(out.String(), "rdmabridge-bench ") {
		t.Errorf("exit code %d, %q %q", code, &out, &errOut)
	}
}
