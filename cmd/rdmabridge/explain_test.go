package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// explainArgs runs explain and returns what it prints.
func explainArgs(t testing.TB, stdin []byte, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := newCommand()
	cmd.SetIn(bytes.NewReader(stdin))
	code = cli.Run(cmd, append([]string{"explain"}, args...), &o, &e)
	return o.String(), e.String(), code
}

// An explainedInput is a part of the first object that explain --json prints.
type explainedInput struct {
	InlineCall  int    `json:"inline_call"`
	InlineReply int    `json:"inline_reply"`
	MaxIO       uint32 `json:"max_io"`
	MaxReply    uint32 `json:"max_reply"`
	From        string `json:"from"`
}

// An explainedMessage is a part of each of the objects behind it.
type explainedMessage struct {
	Kind string `json:"kind"`
	XID  uint32 `json:"xid"`
	Call struct {
		ProcedureName string `json:"procedure_name"`
		Analysis      struct {
			ResultMax uint32 `json:"result_max"`
		} `json:"analysis"`
		Plan struct {
			Reply struct {
				Shape  string `json:"shape"`
				Octets uint32 `json:"octets"`
			} `json:"reply"`
		} `json:"plan"`
	} `json:"call"`
}

// explained runs explain --json and returns the first two objects.
func explained(t testing.TB, stdin []byte, args ...string) (h explainedInput, m explainedMessage) {
	t.Helper()
	out, errOut, code := explainArgs(t, stdin, append(args, "--json")...)
	if code != cli.ExitDone || errOut != "" {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	d := json.NewDecoder(strings.NewReader(out))
	if err := d.Decode(&h); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return h, m
}

// A message comes from --hex, from standard input or from a file.
func TestExplainSources(t *testing.T) {
	call := "000000070000000000000002000186a3000000030000000100000000000000000000000000000000" + "00000004" + "61626364"
	raw, err := hex.DecodeString(call)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		stdin []byte
		args  []string
	}{{nil, []string{"--hex", call}}, {raw, nil}, {raw, []string{"-"}}, {[]byte(call), nil}, {nil, []string{file}}} {
		if _, m := explained(t, tc.stdin, tc.args...); m.Kind != "call" || m.XID != 7 || m.Call.ProcedureName != "GETATTR" {
			t.Errorf("%v with %d octets at standard input: %+v", tc.args, len(tc.stdin), m)
		}
		out, errOut, code := explainArgs(t, tc.stdin, tc.args...)
		if code != cli.ExitDone || errOut != "" || !strings.Contains(out, "nfs version 3 GETATTR, XID 0x00000007") {
			t.Errorf("%v: exit code %d, %s: %s", tc.args, code, errOut, out)
		}
	}
}

func TestExplainConfig(t *testing.T) {
	config := writeFile(t, `
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: plain}]
upstreams:
  - {name: plain, transport: tcp, endpoints: ["127.0.0.1:1"]}
  - {name: storage, transport: rdma, endpoints: ["127.0.0.1:1"], inline: {call: 8KiB, reply: 2KiB}}
chunks: {io: 64KiB}
admin: {address: 127.0.0.1:0}
`)
	call := "000000070000000000000002000186a3000000030000000600000000000000000000000000000000" + "00000004" + "61626364" + "0000000000000000" + "00100000"
	first := func(args ...string) explainedInput {
		h, _ := explained(t, nil, append(args, "--hex", call)...)
		return h
	}
	h := first("--config", config)
	if h.InlineCall != 8<<10 || h.InlineReply != 2<<10 || h.MaxIO != 64<<10 || h.MaxReply != 72<<10 || !strings.HasSuffix(h.From, ", upstream storage") {
		t.Errorf("with a file: %+v", h)
	}
	if h := first("--config", config, "--inline-reply", "1024"); h.InlineCall != 8<<10 || h.InlineReply != 1024 {
		t.Errorf("with a file and a flag: %+v", h)
	}
	if h := first("--inline-call", "1024", "--inline-reply", "1KiB"); h.InlineCall != 1024 || h.InlineReply != 1024 {
		t.Errorf("with flags: %+v", h)
	}
	if h := first(); h.InlineCall != 4096 || h.InlineReply != 4096 || h.MaxIO != 4<<20 || h.From != "" {
		t.Errorf("without: %+v", h)
	}
	_, m := explained(t, nil, "--config", config, "--hex", call)
	if m.Call.Analysis.ResultMax != 64<<10 || m.Call.Plan.Reply.Shape != "write_chunk" || m.Call.Plan.Reply.Octets != 64<<10 {
		t.Errorf("READ of 1 MiB with chunks.io of 64 KiB: %+v, %+v", m.Call.Analysis, m.Call.Plan.Reply)
	}
}

func TestExplainExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	noRDMA := writeFile(t, minimalConfig)
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string // a part of standard error
	}{
		{"no such file", []string{filepath.Join(dir, "none")}, cli.ExitFailed, "no such file"},
		{"a directory", []string{dir}, cli.ExitFailed, "is a directory"},
		{"empty", []string{write("empty", nil)}, cli.ExitFailed, "empty"},
		{"gzip", []string{write("gz", []byte{0x1f, 0x8b, 8, 0})}, cli.ExitFailed, "unpack it first"},
		{"text", []string{write("text", []byte("this is not hex\n"))}, cli.ExitFailed, "this is text, and neither a capture (pcap or pcapng) nor hex"},
		{"bad pcapng", []string{write("ng", []byte{0x0a, 0x0d, 0x0d, 0x0a, 1, 2, 3, 4})}, cli.ExitFailed, "not a capture"},
		{"bad hex", []string{"--hex", "zz"}, cli.ExitUsage, "is not a hex digit"},
		{"odd hex", []string{"--hex", "123"}, cli.ExitUsage, "want an even number"},
		{"no hex", []string{"--hex", ""}, cli.ExitUsage, "no hex digits"},
		{"hex and file", []string{"--hex", "12", "x"}, cli.ExitUsage, "write one of them"},
		{"two files", []string{"x", "y"}, cli.ExitUsage, `"y" is too much: rdmabridge explain [--hex HEX | FILE]`},
		{"max", []string{"--hex", "12", "--max", "-1"}, cli.ExitUsage, "write 0 or more"},
		{"inline too small", []string{"--hex", "12", "--inline-call", "512"}, cli.ExitUsage, "is out of range; write 1KiB to 256KiB"},
		{"inline too large", []string{"--hex", "12", "--inline-reply", "1MiB"}, cli.ExitUsage, "is out of range; write 1KiB to 256KiB"},
		{"no config", []string{"--hex", "12", "--config", filepath.Join(dir, "none")}, cli.ExitFailed, "no such file"},
		{"config without RDMA", []string{"--hex", "12", "--config", noRDMA}, cli.ExitFailed, "no upstream has transport rdma"},
	} {
		_, errOut, code := explainArgs(t, nil, tc.args...)
		if code != tc.code || !strings.Contains(errOut, tc.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tc.name, code, errOut, tc.code, tc.want)
		}
	}
}

// A pipe that closes is an error and no panic.
func TestExplainClosedPipe(t *testing.T) {
	cmd := newCommand()
	var e bytes.Buffer
	if code := cli.Run(cmd, []string{"explain", "../../internal/capture/testdata/tcp.pcap"}, brokenWriter{}, &e); code != cli.ExitFailed {
		t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// The mode of the pool comes from the configuration.
func TestExplainMode(t *testing.T) {
	const call = "000000070000000000000002000186a3000000030000000100000000000000000000000000000000" + "00000004" + "61626364"
	for mode, want := range map[string]string{"auto": "any connection", "shared": "pool.mode shared", "pinned": "the pinned connection"} {
		config := writeFile(t, `
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: storage}]
upstreams: [{name: storage, transport: rdma, endpoints: ["127.0.0.1:1"], pool: {mode: `+mode+`}}]
admin: {address: 127.0.0.1:0}
`)
		if out, _, code := explainArgs(t, nil, "--config", config, "--hex", call); code != cli.ExitDone || !strings.Contains(out, want) {
			t.Errorf("pool.mode %s: exit code %d, no %q in\n%s", mode, code, want, out)
		}
	}
}

// TestExplainRules: explain says which rule of a listener matches a Call, and why the others do not.
func TestExplainRules(t *testing.T) {
	config := writeFile(t, `
listeners:
  - name: nfs
    address: 127.0.0.1:2049
    upstream: plain
    rules:
      - {name: admins, clients: [10.9.0.0/24], action: allow}
      - {name: writes, class: changing, action: deny}
      - {name: reads, programs: [nfs], procedures: [READ], action: allow, dry_run: on}
      - {name: rest, action: deny, answer: close}
  - {name: free, address: "127.0.0.1:2050", upstream: plain}
upstreams: [{name: plain, transport: tcp, endpoints: ["127.0.0.1:1"]}]
admin: {address: 127.0.0.1:0}
`)
	call := "000000070000000000000002000186a3000000030000000600000000000000000000000000000000" + "00000004" + "61626364" + "0000000000000000" + "00100000"
	base := []string{"-c", config, "--hex", call, "--listener", "nfs"}
	out, errOut, code := explainArgs(t, nil, append(base, "--client", "10.2.0.7:700")...)
	if code != cli.ExitDone {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	for _, want := range []string{
		"of listener nfs, for client 10.2.0.7:700: deny: the connection is closed\n",
		"rules[0] admins does not match: clients 10.9.0.0/24 do not have 10.2.0.7\n",
		"rules[1] writes does not match: class changing: the Call changes no file\n",
		"rules[2] reads matches: only counted (dry run of: allow)\n",
		"rules[3] rest matches: deny: the connection is closed\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _, _ = explainArgs(t, nil, append(base, "--client", "10.9.0.7", "--json")...)
	if want := `"rules":{"listener":"nfs","client":"10.9.0.7","effect":"allow","rules":[{"number":0,"name":"admins","matches":true,"effect":"allow"}]}`; !strings.Contains(out, want) {
		t.Errorf("no %s in\n%s", want, out)
	}
	// Nobody knows who sent a message in hex.
	if out, _, code := explainArgs(t, nil, base...); code != cli.ExitDone || strings.Contains(out, "rules[") {
		t.Errorf("without --client: exit code %d\n%s", code, out)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--hex", call, "--listener", "nfs"}, cli.ExitUsage, "--config"},
		{[]string{"--hex", call, "--client", "10.0.0.1"}, cli.ExitUsage, "--listener"},
		{[]string{"--hex", call, "-c", config, "--listener", "nfs", "--client", "host"}, cli.ExitUsage, "--client"},
		{[]string{"--hex", call, "-c", config, "--listener", "other"}, cli.ExitFailed, `--listener: "other" is not in ` + config + "; write nfs or free"},
		{[]string{"--hex", call, "-c", config, "--listener", "free"}, cli.ExitFailed, "has no rules"},
	} {
		if _, errOut, code := explainArgs(t, nil, tt.args...); code != tt.code || !strings.Contains(errOut, tt.want) {
			t.Errorf("%v: exit code %d: %s", tt.args, code, errOut)
		}
	}
}
