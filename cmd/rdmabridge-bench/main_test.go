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
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
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

// TestMistakes: what is said of a wrong command line says what is wrong, and what to write instead.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	words, odd := filepath.Join(dir, "words.txt"), filepath.Join(dir, "odd.yaml")
	for file, text := range map[string]string{words: "hello\n", odd: "rules:\n- {fault: reset, often: true}\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nfs, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		return oncrpc.AppendAccepted(nil, c.XID, oncrpc.ProgramUnavailable), true
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer nfs.Close()
	taken, closed := nfs.Addr(), testkit.DeadAddr(t)
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"fly", cli.ExitUsage, `unknown command "fly" for "rdmabridge-bench", which has compare, `},
		{"lod", cli.ExitUsage, "Did you mean this?\n\tload"},
		{"server extra", cli.ExitUsage, `"extra" is too much: rdmabridge-bench server`},
		{"server --transport udp", cli.ExitUsage, `--transport: "udp" is not possible here; write tcp or rdma`},
		{"server --transport rdma --crc maybe", cli.ExitUsage, `--crc: "maybe" is not possible here; write on or off`},
		{"server --transport rdma --fpdu big", cli.ExitUsage, `--fpdu: "big" is not possible here; write emss or max`},
		{"server --transport rdma --provider ibverbs", cli.ExitUsage, `--provider: this build has no "ibverbs"; write iwarp`},
		{"server --budget 0", cli.ExitUsage, `--budget: "0" is not greater than 0; write a size`},
		{"server --budget 1", cli.ExitUsage, "--budget 1 is out of range; write 256KiB to 1TiB"},
		{"server --credits 0", cli.ExitUsage, "--credits 0 is out of range; write 1 to 16384"},
		{"server --inline 1000", cli.ExitUsage, "--inline 1000 is out of range; write 1KiB to 64KiB, in steps of 1KiB"},
		{"server --loops -1", cli.ExitUsage, "--loops -1 is out of range; write 0 to 1024"},
		{"server --listen 2049", cli.ExitUsage, `--listen: "2049" has no host; write 127.0.0.1:2049, or :2049 for every address`},
		{"server --listen 127.0.0.1:99999", cli.ExitUsage, "which is too large; write a number up to 65535"},
		{"server --listen " + taken, cli.ExitFailed, "address already in use; end the process that listens there, or write another port than --listen " + taken},
		{"server --to tcp://x:1", cli.ExitUsage, "--to needs --faults FILE"},
		{"server --seed 1", cli.ExitUsage, "--seed needs --faults FILE"},
		{"server --faults none.yaml", cli.ExitFailed, "--faults: open none.yaml: no such file or directory; name a file of rules"},
		{"server --faults " + words, cli.ExitFailed, words + ": line 1: `hello` does not belong here; write rules as docs/fault-server.md has them"},
		{"server --faults " + odd, cli.ExitFailed, "often does not belong here; write rules"},
		{"load", cli.ExitUsage, "--target ADDRESS is missing: send Calls to the server or bridge at ADDRESS"},
		{"load --target", cli.ExitUsage, "--target needs a value; write --target ADDRESS: "},
		{"load --target 127.0.0.1", cli.ExitUsage, `--target: "127.0.0.1" has no port; write 127.0.0.1:20050`},
		{"load --target " + closed, cli.ExitFailed, "connection refused; start a server there, such as rdmabridge-bench server, or name another address"},
		{"load --target " + taken, cli.ExitFailed, "the server does not have this program; write --mix nfs3:null for a server of NFS"},
		{"load --target tls://x:1", cli.ExitFailed, "--tls-ca FILE is missing: the CAs that have signed for tls://x:1"},
		{"load --target x:1 --tls-ca none.pem", cli.ExitUsage, "--tls-ca: open none.pem: no such file or directory; name a file of certificates in PEM"},
		{"load --target x:1 --tls-ca " + words, cli.ExitUsage, words + " has no certificate in PEM; name a file that has"},
		{"load --target x:1 --call 10", cli.ExitUsage, "--call 10 is out of range; write 56 to 4MiB"},
		{"load --target x:1 --reply 10", cli.ExitUsage, "--reply 10 is out of range; write 32 to 4MiB"},
		{"load --target x:1 --reply 1GiB", cli.ExitFailed, "--call 100 and --reply 1073741824 are too long; write 4194304 at most"},
		{"load --target x:1 --pid me", cli.ExitUsage, `--pid: "me" is not the id of a process; write a number above 0`},
		{"load --target x:1 --delay 1m", cli.ExitUsage, "--delay 1m0s is out of range; write 0 to 10s"},
		{"load --target x:1 --conns 0", cli.ExitFailed, "--conns 0 is out of range; write 1 to 50000"},
		{"load --target x:1 --depth -1", cli.ExitFailed, "--depth -1 is out of range; write 1 to 4096"},
		{"load --target x:1 --rate -1", cli.ExitFailed, "--rate -1 is out of range; write 0 or more"},
		{"load --target x:1 --idle -1", cli.ExitFailed, "--idle -1 is out of range; write 0 to 50000"},
		{"load --target x:1 --duration 0", cli.ExitFailed, "--duration 0s is out of range; write a time above 0"},
		{"load --target x:1 --duration 5", cli.ExitUsage, `--duration: "5" is not possible here; write a duration like "30s" or "5m"`},
		{"load --target x:1 --loops 100000", cli.ExitUsage, "--loops 100000 is out of range; write 0 to 1024"},
		{"load --target x:1 --mix nfs4:read", cli.ExitFailed, `--mix: "nfs4:read" is not possible here; write nfs3: and a list`},
		{"load --target x:1 --mix nfs3:fly", cli.ExitFailed, `--mix: nfs3 has no "fly" here; write null, getattr, read or write`},
		{"load --target x:1 --mix nfs3:read=x", cli.ExitFailed, `--mix: "nfs3:read=x" has the weight "x"; write a whole number above 0`},
		{"load --target x:1 --mix nfs3:read --size 5", cli.ExitFailed, "--size 5 is out of range; write 4 to 4194304, in steps of 4"},
		{"compare --a x:1", cli.ExitUsage, "--b ADDRESS is missing: the second ADDRESS"},
		{"compare --a x:1 --b nowhere", cli.ExitUsage, `--b: "nowhere" has no port; write nowhere:20050`},
		{"compare --a x:1 --b x:1 --rounds 0", cli.ExitUsage, "--rounds 0 is out of range; write 1 to 1000"},
		{"peers --target x:1", cli.ExitUsage, `--target: "x:1" has no name; write NAME=HOST:PORT or NAME=HOST:PORT@PID`},
		{"peers --target x=y", cli.ExitUsage, `--target: "y" has no port; write y:20050`},
		{"peers --target x=y:1@z", cli.ExitUsage, `--target: "z" is not the id of a process; write a number above 0`},
		{"peers --target x=y:1,x=y:1", cli.ExitUsage, `--target: "x=y:1": another target has the name x; write another name`},
		{"peers --target x=y:1 --baseline z", cli.ExitUsage, `--baseline: "z" is no target; write x`},
		{"peers --target x=y:1 --cases some", cli.ExitUsage, `--cases: "some" is not possible here; write echo, nfs or all`},
		{"peers --target x=y:1 --cases all --only nothing", cli.ExitUsage, `--only: no case of all has "nothing" in its name; write a part of one of these: `},
		{"man " + words, cli.ExitFailed, words + ": not a directory; name a directory that is there or can be made"},
	} {
		var out, errOut bytes.Buffer
		args := strings.Fields(tc.args)
		code := execute(args, &out, &errOut)
		if code != tc.code || !strings.Contains(errOut.String(), tc.want) {
			t.Errorf("%s: exit code %d, %q; want %q", tc.args, code, errOut.String(), tc.want)
		}
		clitest.Helps(t, args, errOut.String())
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
