package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// TestInit: what init writes passes check, for each use and transport.
func TestInit(t *testing.T) {
	for _, tc := range []struct {
		plan   initPlan
		listen string
		mount  string
	}{
		{initPlan{storage: "10.1.0.5", transport: "rdma", clients: "10.0.0.0/8, 2001:db8::/32", use: initGateway, export: "/data"}, "[::]:2049", ":/data /mnt/nfs nfs vers=4.2,proto=tcp,port=2049,_netdev 0 0"},
		{initPlan{storage: "storage.example:3049", transport: "tcp", use: initSidecar, export: "/"}, "127.0.0.1:12049", "mount -t nfs -o vers=3,proto=tcp,port=12049,mountproto=tcp,mountport=12049,nolock 127.0.0.1:/ /mnt/nfs"},
		{initPlan{storage: "2001:db8::5", transport: "rdma", use: initSidecar, export: "/e"}, "127.0.0.1:12049", "Options=vers=4.1,proto=tcp,port=12049,_netdev"},
		{initPlan{storage: "10.1.0.5", transport: "tcp", clients: "10.0.0.0/8", use: initReverse, export: "/"}, "0.0.0.0:20049", "Options=vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=20048,nolock,_netdev"},
		{initPlan{storage: "10.1.0.5", transport: "rdma", clients: "10.0.0.0/8", use: initReverse, export: "/"}, "0.0.0.0:20049", "mount -t nfs -o vers=4.2,proto=rdma,port=20049 "},
	} {
		text, err := tc.plan.config()
		if err != nil {
			t.Errorf("%+v: %v", tc.plan, err)
			continue
		}
		c, err := configs.Load(text, known)
		if err != nil || c.Listeners[0].Address != tc.listen || string(c.Upstreams[0].Transport) != tc.plan.transport || len(c.Warnings()) > 0 {
			t.Errorf("%v: %+v", err, c)
		}
		if formatted, err := configs.Format("", text); err != nil || strings.Count(string(formatted), "#") != strings.Count(string(text), "#") {
			t.Errorf("%v: %s", err, formatted)
		}
		var out bytes.Buffer
		if err := tc.plan.mounts(&out, "rdmabridge.service", true); err != nil || !strings.Contains(out.String(), tc.mount) {
			t.Errorf("%v: %s, want %q", err, &out, tc.mount)
		}
	}
}

// TestInitCommand: init writes a file once, runs doctor with it, and prints how to mount.
func TestInitCommand(t *testing.T) {
	s, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	args := []string{"init", file, "--storage", s.Addr(), "--transport", "tcp", "--as", "sidecar"}
	code, out, errOut := run(args...)
	rest := out
	for _, want := range []string{
		file + " is written. Start the bridge: rdmabridge serve -c " + file, "vers=4.2,proto=tcp,port=12049,_netdev,x-systemd.requires=rdmabridge.service 0 0",
		"\n  Requires=rdmabridge.service\n", "with --all", "rdmabridge doctor -c " + file + " says:", "upstream",
	} {
		var ok bool
		if _, rest, ok = strings.Cut(rest, want); !ok {
			t.Errorf("%d: %q is not said, or not in its place: %s%s", code, want, out, errOut)
		}
	}
	if strings.Contains(out, "vers=3") || strings.Contains(out, "vers=4.1") {
		t.Errorf("several versions: %s", out)
	}
	if code, out, _ := run("check", file); code != cli.ExitDone {
		t.Errorf("check: %d %s", code, out)
	}
	if _, out, errOut := run(append(args, "--all")...); !strings.Contains(out, "vers=3") {
		t.Errorf("a second time: %s%s", out, errOut)
	}
	if code, _, errOut := run(append(args, "--as", "gateway", "--clients", "10.0.0.0/8")...); code != cli.ExitFailed || !strings.Contains(errOut, "is there already") {
		t.Errorf("a second time, with another answer: %d %s", code, errOut)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--storage", "10.1.0.500", "--as", "sidecar"}, `--storage: "10.1.0.500:20049": 10.1.0.500 is not an IPv4 address`},
		{[]string{"--storage", "h", "--as", "bridge", "--clients", "10.0.0.0/8"}, `--as: "bridge" is not possible here; write sidecar, gateway or reverse`},
		{[]string{"--storage", "h", "--transport", "ib", "--as", "sidecar"}, `--transport: "ib" is not possible here`},
		{[]string{"--storage", "h", "--as", "gateway", "--clients", "10.1.2.3/8"}, "has bits set beyond its length; write 10.0.0.0/8"},
		{[]string{"--storage", "h", "--as", "gateway", "--clients", "x], b: [y"}, `--clients: "x]" is neither a network nor an address; write one such as 10.0.0.0/8`},
		{[]string{"--storage", "0.0.0.0", "--as", "sidecar"}, `--storage: "0.0.0.0:20049" stands for every address of a host; write the one of the server`},
		{[]string{"--storage", "10.1.0.5:/export", "--as", "sidecar"}, `--storage: "10.1.0.5:/export" has the path of an export; write 10.1.0.5:20049, and mount /export on the clients`},
		{[]string{"--storage", "http://h", "--as", "sidecar"}, `--storage: "http://h" is a URL; write h:20049, without http://`},
		{[]string{"--storage", "h", "--as", "gateway", "--clients", "all"}, `--clients: "all" is neither a network nor an address; write one such as 10.0.0.0/8`},
		{[]string{"--storage", "h", "--as", "sidecar", "--export", "data"}, `--export: "data" is not an absolute path; write one such as /export`},
		{[]string{"--as", "sidecar"}, `--storage is missing: `},
	} {
		file := filepath.Join(t.TempDir(), "bridge.yaml")
		code, _, errOut := run(append([]string{"init", file}, tc.args...)...)
		if code != cli.ExitUsage || !strings.Contains(errOut, tc.want) {
			t.Errorf("%v: %d %s, want %s", tc.args, code, errOut, tc.want)
		}
		clitest.Helps(t, tc.args, errOut)
		if _, err := os.Stat(file); err == nil {
			t.Error("a file is written")
		}
	}
}

// TestInitUnits: systemd takes the units that init prints.
func TestInitUnits(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	for _, use := range []string{initSidecar, initGateway, initReverse} {
		p := initPlan{storage: "10.1.0.5", transport: "tcp", clients: "10.0.0.0/8", use: use, export: "/"}
		var out bytes.Buffer
		if err := p.mounts(&out, "rdmabridge.service", true); err != nil {
			t.Fatal(err)
		}
		units := strings.Split(out.String(), "or in /etc/systemd/system/mnt-nfs.mount:\n")[1:]
		if len(units) != 4 {
			t.Fatalf("%d units in\n%s", len(units), &out)
		}
		for _, unit := range units {
			unit, _, _ = strings.Cut(unit, "WantedBy=")
			file := filepath.Join(t.TempDir(), "mnt-nfs.mount")
			write(t, file, strings.ReplaceAll(unit+"WantedBy=remote-fs.target\n", "\n  ", "\n"))
			bridge := filepath.Join(filepath.Dir(file), "rdmabridge.service") // which mounts of a sidecar need
			write(t, bridge, "[Service]\nExecStart=/bin/true\n")
			out, err := exec.CommandContext(t.Context(), verify, "verify", "--man=no", file, bridge).CombinedOutput()
			if err != nil || strings.Contains(string(out), "mnt-nfs.mount") {
				t.Errorf("%v %s\n%s", err, out, unit)
			}
		}
	}
}

// TestInitQuestions: three questions are asked, and only of a person.
func TestInitQuestions(t *testing.T) {
	var out bytes.Buffer
	var p initPlan
	if err := p.ask(strings.NewReader("10.1.0.5\n\n10.0.0.0/8\n"), &out); err != nil || p.storage != "10.1.0.5" || p.use != initGateway || p.clients != "10.0.0.0/8" || p.transport != "rdma" {
		t.Errorf("%v %+v", err, p)
	}
	if n := strings.Count(out.String(), "?"); n != 3 {
		t.Errorf("%d questions: %s", n, &out)
	}
	p = initPlan{}
	if err := p.ask(strings.NewReader("10.1.0.5\nreverse\n10.0.0.0/8\n"), new(testkit.Log)); err != nil || p.use != initReverse || p.transport != "tcp" {
		t.Errorf("reverse: %v %+v", err, p)
	}
	p = initPlan{}
	out.Reset()
	if err := p.ask(strings.NewReader("10.1.0.500\n10.1.0.5\nbridge\ngateway\nall\n\n10.1.2.3/8\n10.0.0.0/8\n"), &out); err != nil || p.storage != "10.1.0.5" || p.use != initGateway || p.clients != "10.0.0.0/8" {
		t.Errorf("after bad answers: %v %+v", err, p)
	}
	for _, want := range []string{"10.1.0.500 is not an IPv4 address", `"bridge" is not possible here; write sidecar`, "write 10.0.0.0/8"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said: %s", want, &out)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := new(initPlan).ask(null, new(testkit.Log)); err == nil || !strings.HasPrefix(err.Error(), "--storage is missing") {
		t.Errorf("nobody to ask: %v", err)
	}
}

// TestInitStart: a file where the units look is started by its unit.
func TestInitStart(t *testing.T) {
	for file, want := range map[string][2]string{
		"/etc/rdmabridge/rdmabridge.yaml": {"systemctl enable --now rdmabridge", "rdmabridge.service"},
		"/etc/rdmabridge/home.yaml":       {"systemctl enable --now rdmabridge@home", "rdmabridge@home.service"},
		"/srv/home.yaml":                  {"rdmabridge serve -c /srv/home.yaml", "rdmabridge.service"},
	} {
		if command, unit := startOf(file); command != want[0] || unit != want[1] {
			t.Errorf("%s: %q %q", file, command, unit)
		}
	}
}
