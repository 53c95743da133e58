package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/nfsmount"
)

const minimalConfig = `
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: storage}]
upstreams: [{name: storage, transport: tcp, endpoints: ["127.0.0.1:1"]}]
admin: {address: 127.0.0.1:0}
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "rdmabridge.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestExitCodes(t *testing.T) {
	good := writeFile(t, minimalConfig)
	lends := writeFile(t, strings.TrimPrefix(strings.Replace(minimalConfig, `["127.0.0.1:1"]`, `["127.0.0.1:1"], source: {ports: reserved}`, 1), "\n"))
	bad := writeFile(t, "listeners: []\nfoo: 1\nbar: 2\n")
	people := writeFile(t, "listeners: []\nlog: {format: console}\n")
	for _, tc := range []struct {
		name        string
		args        []string
		code        int
		out, errOut string // a part of each
	}{
		{"nothing", []string{}, cli.ExitDone, "Look at a running bridge:", ""},
		{"help", []string{"--help"}, cli.ExitDone, "Look at a running bridge:", ""},
		{"unknown command", []string{"fly"}, cli.ExitUsage, "", `unknown command "fly" for "rdmabridge", which has capture, check, `},
		{"unknown command of config", []string{"config", "upgrade"}, cli.ExitUsage, "", `unknown command "upgrade" for "rdmabridge config", which has fmt, print, schema` + "\nRun"},
		{"a typo below config", []string{"config", "prnt"}, cli.ExitUsage, "", "Did you mean this?\n\tprint\nRun"},
		{"an unknown shell", []string{"completion", "csh"}, cli.ExitUsage, "", "Did you mean this?\n\tbash\n\t"},
		{"help", []string{"help", "config", "print"}, cli.ExitDone, "rdmabridge config print [FILE]", ""},
		{"help of nothing", []string{"help"}, cli.ExitDone, "Look at a running bridge:", ""},
		{"help of an unknown command", []string{"help", "fly"}, cli.ExitUsage, "", `unknown command "fly" for "rdmabridge", which has capture, check, `},
		{"help of a typo", []string{"help", "stast"}, cli.ExitUsage, "", "Did you mean this?\n\tstats\nRun"},
		{"help of an unknown command of config", []string{"help", "config", "upgrade"}, cli.ExitUsage, "", `"rdmabridge config", which has fmt, print, schema` + "\nRun \"rdmabridge config --help\""},
		{"help of a file", []string{"help", "check", good}, cli.ExitUsage, "", `for "rdmabridge check", which has no commands`},
		{"a verb that is a program", []string{"bench", "load", "--conns", "4"}, cli.ExitUsage, "", "run: rdmabridge-bench load --conns 4\n"},
		{"unknown flag", []string{"demo", "--fly"}, cli.ExitUsage, "", "unknown flag: --fly"},
		{"unknown letter", []string{"demo", "-y"}, cli.ExitUsage, "", "unknown flag: -y\nRun"},
		{"a letter of other commands", []string{"demo", "-c", good}, cli.ExitUsage, "", "unknown flag: -c is not for rdmabridge demo, but for capture, check, "},
		{"a flag of other commands", []string{"demo", "--takeover"}, cli.ExitUsage, "", "unknown flag: --takeover is not for rdmabridge demo, but for serve\nRun"},
		{"a flag without a name", []string{"serve", "--=x"}, cli.ExitUsage, "", "--=x: the name of the flag is missing; write it before the =\nRun"},
		{"a flag without a name behind one dash", []string{"serve", "-=x"}, cli.ExitUsage, "", "-=x: the name of the flag is missing; write it before the =\nRun"},
		{"a name behind three dashes", []string{"serve", "---config=x"}, cli.ExitUsage, "", "---config=x: names of flags stand behind two dashes; write --config=x\nRun"},
		{"dashes alone", []string{"serve", "---"}, cli.ExitUsage, "", "---: the name of the flag is missing; write it behind two dashes\nRun"},
		{"nothing but the end of flags", []string{"serve", "--"}, cli.ExitUsage, "", "a configuration file is missing: rdmabridge serve -c FILE"},
		{"a name behind one dash", []string{"version", "-json"}, cli.ExitUsage, "", "-json: names of flags stand behind two dashes; write --json\nRun \"rdmabridge version --help\""},
		{"a name behind one dash that begins with a letter", []string{"check", "-config", good}, cli.ExitUsage, "", "-config: names of flags stand behind two dashes; write --config\n"},
		{"stray argument", []string{"version", "1"}, cli.ExitUsage, "", `"1" is too much: rdmabridge version`},
		{"no file", []string{"check"}, cli.ExitUsage, "", "a configuration file is missing: rdmabridge check FILE"},
		{"two files", []string{"check", "-c", good, good}, cli.ExitUsage, "", "two files"},
		{"check FILE", []string{"check", good}, cli.ExitDone, "good: 1 listeners, 1 upstreams", ""},
		{"check FILE FILE", []string{"check", good, good}, cli.ExitUsage, "", "is too much"},
		{"serve standard input", []string{"serve", "-"}, cli.ExitUsage, "", "write a file"},
		{"doctor FILE FILE", []string{"doctor", good, good}, cli.ExitUsage, "", `" is too much: rdmabridge doctor`},
		{"a typo", []string{"stast"}, cli.ExitUsage, "", "Did you mean this?\n\tstats\n"},
		{"a typo in a flag", []string{"top", "--viwe", "x"}, cli.ExitUsage, "", "Did you mean this?\n\t--view\nRun \"rdmabridge top --help\""},
		{"--version", []string{"--version"}, cli.ExitDone, "rdmabridge ", ""},
		{"config print", []string{"config", "print", good}, cli.ExitDone, "address: 127.0.0.1:0 # line 2", ""},
		{"config print with a flag", []string{"config", "print", good, "--log-level", "debug"}, cli.ExitDone, "level: debug # --log-level", ""},
		{"check with a flag", []string{"check", good, "--admin-address=9090"}, cli.ExitFailed, "", "--admin-address: admin.address: \"9090\" has no host"},
		{"config print bad", []string{"config", "print", "-c", bad}, cli.ExitFailed, "", ":2: foo: unknown setting"},
		{"config", []string{"config"}, cli.ExitDone, "print       Print the configuration", ""},
		{"check good", []string{"check", "-c", good}, cli.ExitDone, "good: 1 listeners, 1 upstreams", ""},
		{"check warns", []string{"check", "-c", lends}, cli.ExitDone, "good: 1 listeners", "warning: " + lends + ":1: listeners[0].privileged: every user"},
		{"check bad", []string{"check", "-c", bad}, cli.ExitFailed, "", bad + ":2: foo: unknown setting"},
		{"check bad, all of it", []string{"check", "--config", bad}, cli.ExitFailed, "", bad + ":3: bar: unknown setting"},
		{"check unreadable", []string{"check", "-c", bad + ".not"}, cli.ExitUsage, "", "no such file"},
		{"serve bad", []string{"serve", "-c", bad}, cli.ExitFailed, "", `"event":"config_invalid","file":"` + bad + `","line":1,"setting":"listeners","error":"the file has no listener; write at least one"`},
		{"serve bad, for people", []string{"serve", "-c", people}, cli.ExitFailed, "", people + ":1: listeners: the file has no listener; write at least one"},
		{"serve a directory without files", []string{"serve", "-c", filepath.Dir(filepath.Dir(bad))}, cli.ExitUsage, "", "no file in it ends in .yaml or .yml"},
		{"check a directory", []string{"check", filepath.Dir(good)}, cli.ExitDone, "good: 1 listeners", ""},
		{"mount", []string{"mount", "10.1.0.5:/e", "/mnt", "-fo", "ro,vers=3"}, cli.ExitDone, "", ""},
		{"mount -r, and its line", []string{"mount", "10.1.0.5:/e", "/mnt", "-o", "soft", "-o", "vers=3", "-rfv"}, cli.ExitDone, "10.1.0.5:/e /mnt rdmabridge _netdev,soft,vers=3,ro 0 0\n", ""},
		{"mount, as mount(8) has it", []string{"mount", "--helper", "10.1.0.5:/e", "/mnt", "-sfnv", "-o", "rw", "-t", "rdmabridge"}, cli.ExitDone, "", ""},
		{"mount without a directory", []string{"mount", "10.1.0.5:/e"}, nfsmount.Usage, "", "mount.rdmabridge: DIRECTORY is missing: rdmabridge mount STORAGE:/EXPORT DIRECTORY\nRun"},
		{"mount of what is no export", []string{"mount", "10.1.0.5", "/mnt"}, nfsmount.Usage, "", "mount.rdmabridge: \"10.1.0.5\" is not an export of a storage; write one such as 10.1.0.5:/export\n"},
		{"mount with a wrong flag", []string{"mount", "--fly"}, nfsmount.Usage, "", "mount.rdmabridge: unknown flag: --fly\nRun \"rdmabridge mount --help\""},
		{"mount with a letter of other commands", []string{"mount", "-c", good}, nfsmount.Usage, "", "mount.rdmabridge: unknown flag: -c is not for rdmabridge mount, but for "},
		{"mount in a namespace", []string{"mount", "10.1.0.5:/e", "/mnt", "-N", "7"}, nfsmount.Usage, "", "mount.rdmabridge: -N is not supported; use nsenter --mount"},
		{"umount without a directory", []string{"umount"}, nfsmount.Usage, "", "umount.rdmabridge: DIRECTORY is missing"},
		{"check a file that is not there", []string{"check", bad + ".not"}, cli.ExitUsage, "", bad + ".not: no such file or directory; name the configuration file, which rdmabridge init writes"},
		{"an endpoint in place of a file", []string{"doctor", "10.1.0.5:2049"}, cli.ExitUsage, "", "10.1.0.5:2049: no such file or directory; name the configuration file"},
		{"a file of another verb", []string{"stats", good}, cli.ExitUsage, "", `"` + good + `" is too much: rdmabridge stats; the configuration file stands behind -c`},
		{"a verb of a verb", []string{"config", "print", good, "now"}, cli.ExitUsage, "", `"now" is too much: rdmabridge config print [FILE]`},
		{"an argument too many", []string{"explain", "a", "b"}, cli.ExitUsage, "", `"b" is too much: rdmabridge explain [--hex HEX | FILE]`},
		{"no flag that is required", []string{"size", "--calls", "1"}, cli.ExitUsage, "", "--clients NUMBER is missing: NUMBER of connections of clients"},
		{"none of two flags", []string{"size", "--clients", "1"}, cli.ExitUsage, "", "--calls or --bytes is missing"},
		{"flags that exclude each other", []string{"stats", "-c", good, "--socket", "x"}, cli.ExitUsage, "", "--socket and --config exclude each other; write one of them"},
		{"capture without a file", []string{"capture"}, cli.ExitUsage, "", "--write FILE is missing: "},
		{"a number in words", []string{"size", "--clients", "ten", "--calls", "1"}, cli.ExitUsage, "", `--clients: "ten" is not possible here; write an integer`},
		{"a duration without unit", []string{"stats", "--over", "10"}, cli.ExitUsage, "", `--over: "10" is not possible here; write a duration like "30s" or "5m"`},
		{"a flag without its value", []string{"serve", "--config"}, cli.ExitUsage, "", "--config needs a value; write --config FILE: read the configuration from FILE, "},
		{"init in a directory that is not there", []string{"init", "/not/there/bridge.yaml", "--storage", "h", "--as", "sidecar"}, cli.ExitFailed, "", "there is no directory /not/there; make it, or name another file"},
		{"two arguments are missing", []string{"eject"}, cli.ExitUsage, "", "UPSTREAM and ENDPOINT are missing: rdmabridge eject UPSTREAM ENDPOINT\n"},
		{"explain a directory", []string{"explain", filepath.Dir(good)}, cli.ExitFailed, "", filepath.Dir(good) + ": is a directory; name a capture\n"},
		{"explain a file that is not there", []string{"explain", "none.pcap"}, cli.ExitFailed, "", "none.pcap: no such file or directory; name a capture\n"},
		{"config fmt of a directory", []string{"config", "fmt", filepath.Dir(good)}, cli.ExitUsage, "", ": is a directory; name a configuration file\n"},
		{"a directory as the socket", []string{"stats", "--socket", filepath.Dir(good)}, cli.ExitUsage, "", filepath.Dir(good) + " is no socket: name the one that"},
		{"init as what there is not", []string{"init", "--storage", "h", "--as", "proxy"}, cli.ExitUsage, "", `--as: "proxy" is not possible here; write sidecar, gateway or reverse`},
		{"spares that are all", []string{"size", "--clients", "9", "--calls", "1", "--bridges", "1", "--spare", "1"}, cli.ExitUsage, "", "--spare 1 is out of range; write a number below --bridges, which is 1"},
		{"explain nothing", []string{"explain", writeFile(t, "")}, cli.ExitFailed, "", "nothing is in it; name a capture"},
		{"no file to format", []string{"config", "fmt"}, cli.ExitUsage, "", "FILE is missing: rdmabridge config fmt [-w] FILE...\n"},
		{"a word behind a shell", []string{"completion", "bash", "now"}, cli.ExitUsage, "", "\"now\" is too much: rdmabridge completion bash\n"},
		{"pages into a file", []string{"man", good}, cli.ExitFailed, "", good + ": not a directory; name a directory that is there or can be made\n"},
		{"check with a proxy and no client", []string{"check", good, "--proxy", "10.0.0.2"}, cli.ExitUsage, "", "--proxy needs --explain CLIENT, the client that it is about\n"},
		{"check with an identity and no client", []string{"check", good, "--identity", "a"}, cli.ExitUsage, "", "--identity needs --explain CLIENT"},
		{"check with an identity", []string{"check", good, "--explain", "10.0.0.7", "--identity", "a.example"}, cli.ExitDone, "client 10.0.0.7", ""},
		{"check with what is no proxy", []string{"check", good, "--explain", "10.0.0.7", "--proxy", "front"}, cli.ExitUsage, "good: 1 listeners", `--proxy: "front" is not an address; write one such as 10.0.0.2`},
		{"check a program", []string{"check", os.Args[0]}, cli.ExitFailed, "", "the file is longer than 1MiB; name the configuration file\n"},
		{"a size of what is none", []string{"size", "--clients", "1", "--bytes", "5XB"}, cli.ExitUsage, "", `--bytes: "5XB" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB` + "\nRun"},
		{"no clients", []string{"size", "--clients", "0", "--calls", "1"}, cli.ExitUsage, "", "--clients 0 is out of range; write 1 to 100000000\n"},
		{"no bridges", []string{"size", "--clients", "1", "--calls", "1", "--bridges", "0"}, cli.ExitUsage, "", "--bridges 0 is out of range; write 1 to 100000\n"},
		{"fewer Calls than none", []string{"size", "--clients", "1", "--calls=-5"}, cli.ExitUsage, "", "--calls -5 and --bytes 0: write how much the clients do in a second"},
		{"no credits", []string{"size", "--clients", "1", "--calls", "1", "--credits", "0"}, cli.ExitUsage, "", "--credits 0 is out of range; write 1 to 4096\n"},
		{"fewer threads than none", []string{"size", "--clients", "1", "--calls", "1", "--threads=-1"}, cli.ExitUsage, "", "--threads -1: write 0, or a number above it\n"},
		{"a READ that is too long", []string{"size", "--clients", "1", "--calls", "1", "--largest", "1GiB"}, cli.ExitUsage, "", "--largest 1073741824 octets is out of range; write 4KiB to 8MiB\n"},
		{"no hex", []string{"explain", "--hex", "zz"}, cli.ExitUsage, "", "--hex: 'z' is not a hex digit; write two digits from 0 to f for each octet\n"},
		{"explain with what is no listener", []string{"explain", "--hex", "00", "--listener", "nobody", "-c", good}, cli.ExitFailed, "", `--listener: "nobody" is not in ` + good + "; write nfs\n"},
		{"a buffer that is too small", []string{"capture", "-w", "-", "--buffer", "1"}, cli.ExitUsage, "", "--buffer 1 is out of range; write 1MiB to 1GiB\n"},
		{"a buffer that is too large", []string{"capture", "-w", "-", "--buffer", "1TiB"}, cli.ExitUsage, "", "--buffer 1024GiB is out of range; write 1MiB to 1GiB\n"},
		{"a count below none", []string{"capture", "-w", "-", "--count=-1"}, cli.ExitUsage, "", `--count: "-1" is not possible here; write a number, 0 or more` + "\n"},
		{"a client that is none", []string{"capture", "-w", "-", "--client", "nobody"}, cli.ExitUsage, "", `--client: "nobody" is not possible here; write an address or a network`},
		{"what comes after no trigger", []string{"capture", "-w", "-", "--after", "5s"}, cli.ExitUsage, "", "--after needs --trigger EVENT, such as slower=1s, status=stale or disconnect\n"},
		{"a ring without sizes", []string{"capture", "-w", "x", "--ring", "3"}, cli.ExitUsage, "", `--ring "3" is not possible with -w "x"; write a number of files, x, and the size of one`},
		{"version", []string{"version"}, cli.ExitDone, "RDMA providers [iwarp]", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			if code := execute(tc.args, &out, &errOut); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(out.String(), tc.out) || tc.out == "" && out.Len() > 0 {
				t.Errorf("standard output %q, want %q in it", out.String(), tc.out)
			}
			if tc.code != cli.ExitDone {
				clitest.Helps(t, tc.args, errOut.String())
			}
			if !strings.Contains(errOut.String(), tc.errOut) || tc.errOut == "" && errOut.Len() > 0 {
				t.Errorf("standard error %q, want %q in it", errOut.String(), tc.errOut)
			}
		})
	}
}

func TestVersionJSON(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := execute([]string{"version", "--json"}, &out, &errOut); code != cli.ExitDone {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	var b cli.Build
	if err := json.Unmarshal(out.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	if b.Go == "" || b.Platform == "" || !slices.Contains(b.Providers, "iwarp") {
		t.Errorf("version = %+v", b)
	}
}
