package main

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// fakeRPCBind answers each GETPORT with a port, and returns its own.
func fakeRPCBind(t *testing.T, port uint32) string {
	_, own, _ := net.SplitHostPort(testkit.Serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		defer c.Close()
		question := make([]byte, 4+56)
		if _, err := io.ReadFull(c, question); err == nil {
			reply := []byte{0x80, 0, 0, 28}
			reply = append(reply, question[4:8]...)
			reply = append(reply, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
			_, _ = c.Write(binary.BigEndian.AppendUint32(reply, port))
		}
	}))
	return own
}

// lineConfig returns what the flags of serve stand for.
func lineConfig(t *testing.T, rpcbindPort string, args ...string) (text string, c *configs.Config, warning string, err error) {
	t.Helper()
	var l bridgeLine
	cmd := newServeCommand()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]*string{"from": &l.from, "to": &l.to, "mount": &l.mount, "provider": &l.provider, "clients": &l.clients} {
		*to = cmd.Flags().Lookup(name).Value.String()
	}
	l.unmounts = cmd.Flags().Changed("until-unmounted")
	b, c, warning, err := l.config(t.Context(), cmd.Flags(), rpcbindPort)
	return string(b), c, warning, err
}

// TestServeLine: what one line stands for, with the ports and MOUNT that it does not name.
func TestServeLine(t *testing.T) {
	there, empty := fakeRPCBind(t, 20123), fakeRPCBind(t, 0)
	_, nobody, _ := net.SplitHostPort(testkit.DeadAddr(t))
	for _, tc := range []struct {
		rpcbind, line string
		want          string // words of the file
		warning       string
	}{
		{there, "--from tcp://0.0.0.0 --to rdma://127.0.0.1", `"0.0.0.0:2049" upstream: storage {program: mount, "127.0.0.1:20049" "127.0.0.1:20123" address: "127.0.0.1:9090"`, ""},
		{there, "--from rdma://[::] --to tcp://127.0.0.1:3049/ --clients 10.0.0.0/8,192.0.2.7", `"[::]:20049" transport: rdma allow: ["10.0.0.0/8", "192.0.2.7"] "[::]:20048" "127.0.0.1:3049"`, ""},
		{there, "--from tcp://:2049 --to rdma://fd00::5 --provider iwarp --mount [fd00::5]:892 --admin-address none --log-level debug", `provider: iwarp endpoints: ["[fd00::5]:20049"] "[fd00::5]:892" address: "none" log: {level: "debug", format: "auto"}`, ""},
		{there, "--from tcp://127.0.0.1:1 --to tcp://storage.example --mount none", `"storage.example:2049"`, ""},
		{empty, "--from tcp://127.0.0.1:1 --to tcp://127.0.0.1", `"127.0.0.1:2049"`, "the rpcbind of 127.0.0.1 knows no MOUNT"},
		{nobody, "--from tcp://127.0.0.1:1 --to tcp://127.0.0.1", `"127.0.0.1:2049"`, "127.0.0.1 has no rpcbind that says where MOUNT is: clients of NFSv3 cannot mount; say where it is with --mount HOST:PORT"},
	} {
		text, c, warning, err := lineConfig(t, tc.rpcbind, strings.Fields(tc.line)...)
		if err != nil {
			t.Errorf("%s: %v", tc.line, err)
			continue
		}
		rest := text
		for _, want := range strings.Fields(tc.want) {
			_, after, ok := strings.Cut(rest, want)
			if rest = after; !ok {
				t.Errorf("%s: no %s in\n%s", tc.line, want, text)
			}
		}
		if hasMount := strings.Contains(text, "mountd"); hasMount != (strings.Contains(tc.want, "program: mount") || strings.Contains(tc.want, "892") || strings.Contains(tc.want, "20048")) {
			t.Errorf("%s: MOUNT is %t in\n%s", tc.line, hasMount, text)
		}
		if !strings.HasPrefix(warning, tc.warning) || tc.warning == "" && warning != "" {
			t.Errorf("%s: warning %q, want %q", tc.line, warning, tc.warning)
		}
		if formatted, err := configs.Format("", []byte(text)); err != nil || strings.Count(string(formatted), "#") != strings.Count(text, "#") || len(c.Warnings()) > 0 {
			t.Errorf("%s: %v %v %s", tc.line, err, c.Warnings(), formatted)
		}
	}
}

// TestServeLineMistakes: a mistake gets one line that names the flag.
func TestServeLineMistakes(t *testing.T) {
	good := writeFile(t, minimalConfig)
	for line, want := range map[string]string{
		"":                       "a configuration file is missing: rdmabridge serve -c FILE | --from URL --to URL",
		"--from tcp://:2049":     "--to is missing: the storage, such as --to rdma://10.1.0.5",
		"--to tcp://10.1.0.5":    "--from is missing: where clients connect, such as --from tcp://0.0.0.0:2049",
		"--print-config " + good: "--print-config needs --from and --to",
		"--from tcp://:2049 --to tcp://h " + good:                            "--from and the file " + good + ": write one of the two",
		"--from tcp://:2049 --to tcp://h -c " + good:                         "--from and the file " + good + ": write one of the two",
		"--from tcp://:2049 --to tcp://h --takeover":                         "--takeover needs a file, with handover.path",
		"--from 0.0.0.0:2049 --to tcp://h":                                   `--from: "0.0.0.0:2049" is not possible here; write tcp://HOST:PORT or rdma://HOST:PORT, where the port may be left out`,
		"--from udp://0.0.0.0:2049 --to tcp://h":                             `--from: "udp://0.0.0.0:2049" is not possible here; write tcp://HOST:PORT`,
		"--from tcp://0.0.0.0:nfs --to tcp://h":                              `--from: "0.0.0.0:nfs" has the port by its name; write its number: 0.0.0.0:2049`,
		"--from tcp:// --to tcp://h":                                         `--from: "tcp://" has no host; write one such as tcp://10.1.0.5`,
		"--from tcp://:2049 --to rdma://h/export/a":                          `--to: "rdma://h/export/a" has the path of an export; write rdma://h, and mount /export/a on the clients`,
		"--from tcp://:2049 --to rdma://10.1.0.500":                          "--to: \"10.1.0.500:20049\": 10.1.0.500 is not an IPv4 address",
		"--from tcp://:2049 --to rdma://0.0.0.0 --mount none":                `--to: "0.0.0.0:20049" stands for every address of a host`,
		"--from tcp://:2049 --to tcp://h --mount none --provider iwarp":      "--provider needs rdma:// in --from or in --to",
		"--from tcp://:2049 --to rdma://h --mount none --provider roce":      `--provider: "roce" is no provider; write ibverbs, which uses adapters for RoCE`,
		"--from tcp://:2049 --to rdma://h --mount 20048":                     `--mount: "20048" has no host`,
		"--from tcp://:2049 --to rdma://h --mount none --clients 10.1.2.3/8": `--clients: "10.1.2.3/8" has bits set beyond its length; write 10.0.0.0/8`,
		"--from tcp://:2049 --to rdma://h --mount none --clients a],b:[c":    `--clients: "a]" is neither a network nor an address; write one such as 10.0.0.0/8`,
		"--from tcp://:2049 --to rdma://h --mount none --until-unmounted":    "--until-unmounted needs --from tcp://127.0.0.1:PORT, which mounts of this host use",
		"--from tcp://:2049 --to rdma://h --mount none --log-format xml":     `--log-format: log.format: "xml" is not possible here`,
	} {
		code, out, errOut := run(append([]string{"serve"}, strings.Fields(line)...)...)
		if code != cli.ExitUsage || out != "" || !strings.HasPrefix(errOut, want) {
			t.Errorf("serve %s: %d %s%s\nwant %s", line, code, out, errOut, want)
		}
		clitest.Helps(t, strings.Fields(line), errOut)
		if n := strings.Count(strings.TrimSuffix(errOut, "Run \"rdmabridge serve --help\" for usage.\n"), "\n"); n != 1 {
			t.Errorf("serve %s: %d lines: %s", line, n, errOut)
		}
	}
	code, out, errOut := run("serve", "--from", "tcp://:2049", "--to", "rdma://h", "--mount", "none", "--print-config")
	if code != cli.ExitDone || !strings.Contains(out, `endpoints: ["h:20049"]`) || errOut != "" {
		t.Errorf("--print-config: %d %s%s", code, out, errOut)
	}
}

// TestServeLineWorks: a Call crosses two bridges of one line each, TCP to RDMA and RDMA to TCP.
func TestServeLineWorks(t *testing.T) {
	s, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	to := "tcp://" + s.Addr()
	var front *bridge
	for _, from := range []string{"rdma://127.0.0.1:0", "tcp://127.0.0.1:0"} {
		text, _, _, err := lineConfig(t, "111", "--from", from, "--to", to, "--mount", "none", "--admin-address", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b, signals, wait := startServe(t, text+"memory: {budget: 256MiB}\n")
		defer func() {
			signals <- syscall.SIGTERM
			if err := wait(); err != nil {
				t.Error(err)
			}
		}()
		name := "nfs"
		if strings.HasPrefix(from, "rdma") {
			name = "nfs-rdma"
		}
		front, to = b, "rdma://"+b.proxy.Addr(name)
	}
	client, err := proxytest.DialClient(front.proxy.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if reply, err := client.Call(nullCall(7, 100003, 3)); err != nil || len(reply) < 24 {
		t.Errorf("%x %v", reply, err)
	}
}
