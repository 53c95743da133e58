package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

var update = flag.Bool("update", false, "write testdata/explain anew")

// explainArgs runs explain and returns what it prints.
func explainArgs(t testing.TB, stdin []byte, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := newCommand()
	cmd.SetIn(bytes.NewReader(stdin))
	code = executeCommand(cmd, append([]string{"explain"}, args...), &o, &e)
	return o.String(), e.String(), code
}

// The whole output, of captures that hold every vector of ulb/nfs, over TCP and
// over iWARP. go test -run Golden ./cmd/rdmabridge -update writes it anew.
func TestExplainGolden(t *testing.T) {
	const captures = "../../internal/capture/testdata/"
	cut := filepath.Join(t.TempDir(), "cut.pcap")
	b, err := os.ReadFile(captures + "tcp.pcap")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, b[:3000], 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, []byte(largeMessages(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		golden string
		args   []string
	}{
		{"large.txt", []string{large}},
		{"large-1024.txt", []string{large, "--inline-call", "1024", "--inline-reply", "1KiB"}},
		{"tcp.txt", []string{captures + "tcp.pcap"}},
		{"tcp-max.txt", []string{captures + "tcp.pcap", "--max", "3"}},
		{"iwarp.txt", []string{captures + "iwarp.pcap"}},
		{"iwarp.jsonl", []string{captures + "iwarp.pcap", "--json"}},
		{"cut.txt", []string{cut}},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			got, errOut, code := explainArgs(t, nil, tc.args...)
			if code != exitDone || errOut != "" {
				t.Fatalf("exit code %d: %s", code, errOut)
			}
			name := filepath.Join("testdata", "explain", tc.golden)
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if line := difference(got, string(want)); line != "" {
				t.Errorf("%s: %s", name, line)
			}
		})
	}
}

// A vectorFile is what explain's tests take of the vectors of ulb/nfs.
type vectorFile struct {
	Vectors []struct {
		ID, Call   string
		Protect    string
		ArgsOffset int `json:"args_offset"`
		Ops        []string
		DDPAllowed bool   `json:"ddp_allowed"`
		MaxReply   uint32 `json:"max_reply_total"`
		RetryClass string `json:"retry_class"`
		ReadItems  []item `json:"read_items"`
		Replies    []struct {
			Name  string
			Reply string
			Items []struct{ Offset, Length uint32 }
		}
	}
	RDMA []struct{ Hex string }
}

func vectors(t testing.TB) *vectorFile {
	t.Helper()
	b, err := os.ReadFile("../../internal/rpc/ulb/nfs/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	f := new(vectorFile)
	if err := json.Unmarshal(b, f); err != nil || len(f.Vectors) == 0 {
		t.Fatal(len(f.Vectors), err)
	}
	return f
}

// largeMessages are vectors with more data, as records in hex.
func largeMessages(t *testing.T) string {
	f := vectors(t)
	find := func(id string) (call, reply string) {
		for _, v := range f.Vectors {
			if v.ID == id {
				return v.Call, v.Replies[0].Reply
			}
		}
		t.Fatalf("no vector %s", id)
		return "", ""
	}
	// An item of have octets at position becomes one of n.
	grow := func(m string, position, have, n int) string {
		end := position + (have+3)&^3
		return m[:2*position-8] + fmt.Sprintf("%08x", n) + strings.Repeat("5a", n) + strings.Repeat("00", -n&3) + m[2*end:]
	}
	var out strings.Builder
	add := func(m string) { out.WriteString(hexRecord(t, m) + "\n") }
	call, reply := find("02-nfs3-read")
	add(call[:len(call)-8] + "00100000") // count
	add(grow(reply, 128, 10, 9999))
	call, reply = find("03-nfs3-write")
	add(grow(call, 128, 13, 8193))
	add(reply)
	call, reply = find("17-nfs41-seq-putfh-write-getattr")
	add(grow(call, 196, 13, 65536))
	add(reply)
	call, _ = find("16-nfs41-seq-putfh-read")
	add(call[:len(call)-8] + "00008000")
	call, reply = find("04-nfs3-symlink")
	add(grow(call, 172, 17, 4095))
	add(reply)
	call, _ = find("06-nfs3-readdirplus")
	add(call[:len(call)-8] + "00008000")
	return out.String()
}

// difference is the first line in which two texts differ.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			return fmt.Sprintf("line %d is missing: %s", i+1, w[i])
		case i >= len(w):
			return fmt.Sprintf("line %d is too many: %s", i+1, g[i])
		case g[i] != w[i]:
			return fmt.Sprintf("line %d is\n%s\nwant\n%s", i+1, g[i], w[i])
		}
	}
	return ""
}

// explained is the first message in the JSON that explain prints.
func explained(t testing.TB, stdin []byte, args ...string) *message {
	t.Helper()
	out, errOut, code := explainArgs(t, stdin, append(args, "--json")...)
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	var h header
	if err := d.Decode(&h); err != nil || h.Kind != "input" {
		t.Fatalf("header %+v: %v", h, err)
	}
	var m message
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// What explain says of the vectors of ulb/nfs is what their reference says: see
// there.
func TestExplainVectors(t *testing.T) {
	f := vectors(t)
	classes := map[string]string{"R": "read-only", "I": "idempotent", "S": "sequenced", "X": "sequenced", "N": "non-idempotent"}
	for _, v := range f.Vectors {
		t.Run(v.ID, func(t *testing.T) {
			m := explained(t, nil, "--hex", v.Call)
			c := m.Call
			if m.Kind != kindCall || c == nil {
				t.Fatalf("%+v", m)
			}
			if c.Protection != v.Protect || c.Arguments != v.ArgsOffset || c.Length != len(v.Call)/2 {
				t.Errorf("protection %s, arguments at %d, length %d; want %s, %d, %d", c.Protection, c.Arguments, c.Length, v.Protect, v.ArgsOffset, len(v.Call)/2)
			}
			switch {
			case c.Program == oncrpc.ProgramCCP:
				if c.Local == "" || c.Plan != nil {
					t.Errorf("CCP is not answered here: %+v", c)
				}
				return
			case c.Compound != nil:
				var ops []string
				for _, o := range c.Compound.Operations {
					ops = append(ops, o.Name)
				}
				if (c.Compound.Rest != "") != (v.ID == "28-nfs42-unknown-op") {
					t.Errorf("%+v", c.Compound)
				}
				if c.Compound.Rest == "" && !slices.Equal(ops, v.Ops) {
					t.Errorf("operations %v, want %v", ops, v.Ops)
				}
			case c.Analysis.Known && c.ProcedureName != "NULL" && !slices.Equal([]string{c.ProcedureName}, v.Ops):
				t.Errorf("procedure %s, want %v", c.ProcedureName, v.Ops)
			}
			a := c.Analysis
			if c.Compound != nil && c.Compound.Rest != "" {
				v.MaxReply = 1056768 // chunks.reply: the reference takes the session's, of which nothing is known here
			}
			if a.Reducible != v.DDPAllowed || a.MaxReply != v.MaxReply || a.Class != classes[v.RetryClass] {
				t.Errorf("reducible %v, at most %d, %s; want %v, %d, %s", a.Reducible, a.MaxReply, a.Class, v.DDPAllowed, v.MaxReply, classes[v.RetryClass])
			}
			if a.Argument != nil && !slices.Contains(v.ReadItems, *a.Argument) {
				t.Errorf("argument %+v, want one of %+v", *a.Argument, v.ReadItems)
			}
			if c.Plan == nil || c.Plan.Error != "" {
				t.Fatalf("plan %+v", c.Plan)
			}
			for _, r := range v.Replies {
				// Both in one input, as records.
				in := hexRecord(t, v.Call) + hexRecord(t, r.Reply)
				out, errOut, code := explainArgs(t, []byte(in), "--json")
				lines := strings.Split(out, "\n")
				if code != exitDone || len(lines) != 5 {
					t.Fatalf("%s: exit code %d, %s: %s", r.Name, code, errOut, out)
				}
				var m message
				if err := json.Unmarshal([]byte(lines[2]), &m); err != nil {
					t.Fatal(err)
				}
				p := m.Reply
				switch {
				case m.Kind != kindReply || p.Call != 1 || p.Length != len(r.Reply)/2:
					t.Errorf("%s: %+v", r.Name, m)
				case p.Bound == nil || !p.Bound.Holds || p.Travel == nil || p.Travel.Shape == shapeNone:
					t.Errorf("%s: bound %+v, travels %+v", r.Name, p.Bound, p.Travel)
				case p.Item != nil && (len(r.Items) == 0 || *p.Item != (item{r.Items[0].Offset, r.Items[0].Length})):
					t.Errorf("%s: item %+v, want %+v", r.Name, *p.Item, r.Items)
				case p.Item == nil && len(r.Items) > 0 && v.DDPAllowed:
					t.Errorf("%s: no item, want %+v", r.Name, r.Items)
				}
			}
		})
	}
}

// hexRecord is a message in hex with a record mark before.
func hexRecord(t testing.TB, message string) string {
	t.Helper()
	return fmt.Sprintf("%08x%s", 1<<31|len(message)/2, message)
}

// The arithmetic that is shown is that of the plan.
func TestExplainArithmetic(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	seen := map[string]int{}
	for range 20000 {
		e := &explainer{
			registry: ulb.NewRegistry(ulb.Limits{}), callInline: 1024 << rng.IntN(4), replyInline: 1024 << rng.IntN(4),
		}
		length := 40 + rng.IntN(1<<rng.IntN(17))&^3
		a := ulb.Analysis{Known: rng.IntN(5) > 0, Reduce: rng.IntN(5) > 0, MaxReduced: uint32(rng.IntN(1 << rng.IntN(16)))}
		if rng.IntN(2) == 0 {
			a.ResultMax = uint32(rng.IntN(1 << 20))
		}
		if rng.IntN(2) == 0 && length > 60 {
			a.ArgPosition = 56
			a.ArgLength = uint32(rng.IntN(length - 56))
		}
		a.MaxReply = a.MaxReduced + a.ResultMax
		k := new(knownCall)
		p := e.newPlan(&oncrpc.Call{Program: oncrpc.ProgramNFS, Version: 3, Procedure: 6}, &a, length, k)
		if p.Error != "" {
			t.Fatalf("%+v: %s", a, p.Error)
		}
		seen[p.Call.Shape+" "+p.Reply.Shape]++
		for _, s := range []struct {
			shape
			last string
		}{{p.Call, shapePositionZero}, {p.Reply, shapeReplyChunk}} {
			// The first shape of which all comparisons hold; the last needs none.
			want := s.last
			for i := 0; i < len(s.Steps); {
				holds := true
				j := i
				for ; j < len(s.Steps) && s.Steps[j].Tries == s.Steps[i].Tries; j++ {
					holds = holds && s.Steps[j].Holds
				}
				if holds {
					want = s.Steps[i].Tries
					if j != len(s.Steps) {
						t.Errorf("%+v: looked on after %s", s, want)
					}
				}
				i = j
			}
			if s.Shape != want || s.DecidedBy == "" || len(s.Otherwise) == 0 && s.Shape == shapeInline {
				t.Errorf("%+v of %d octets at %d, %d: %+v, want %s", a, length, e.callInline, e.replyInline, s, want)
			}
		}
	}
	if len(seen) != 7 { // a Write chunk goes with a Call inline only
		t.Errorf("shapes %v, want 7 of them", seen)
	}
}

func TestExplainInput(t *testing.T) {
	call := "000000070000000000000002000186a3000000030000000100000000000000000000000000000000" + "00000004" + "61626364"
	raw, err := hex.DecodeString(call)
	if err != nil {
		t.Fatal(err)
	}
	marked := append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(raw))), raw...)
	halves := slices.Concat(binary.BigEndian.AppendUint32(nil, 20), raw[:20], binary.BigEndian.AppendUint32(nil, 1<<31|28), raw[20:])
	transport := append(binary.BigEndian.AppendUint32(nil, 7), make([]byte, 24)...)
	transport[7], transport[11] = 1, 64
	for name, in := range map[string][]byte{
		"hex":                       []byte(call),
		"hex with comments":         []byte("# a GETATTR\n0x00000007 " + call[8:60] + " # more\n\n" + strings.ToUpper(call[60:])),
		"hex by colons":             []byte("00:00:00:07," + call[8:]),
		"hex with mark":             []byte(hexRecord(t, call)),
		"raw":                       raw,
		"raw with mark":             marked,
		"raw in two fragments":      halves,
		"raw with Transport header": append(transport, raw...),
	} {
		m := explained(t, in)
		if m.Kind != kindCall || m.Call == nil || m.Call.ProcedureName != "GETATTR" || *m.XID != 7 || m.Call.Length != 48 || m.Call.Plan == nil {
			t.Errorf("%s: %+v", name, m)
		}
		if (m.RDMA != nil) != strings.Contains(name, "Transport") {
			t.Errorf("%s: Transport header %+v", name, m.RDMA)
		}
		file := filepath.Join(t.TempDir(), "input")
		if err := os.WriteFile(file, in, 0o600); err != nil {
			t.Fatal(err)
		}
		if again := explained(t, nil, file); again.Kind != kindCall || *again.XID != 7 {
			t.Errorf("%s from a file: %+v", name, again)
		}
	}
}

// Malformed messages are explained, with exit code 0.
func TestExplainMalformed(t *testing.T) {
	const head = "00000007 00000000 00000002 000186a3 00000003 00000001 "
	for _, tc := range []struct{ in, kind, want string }{
		{"00000007", kindMalformed, "4 octets, an XID and a message type take 8"},
		{"00000007 00000009 00000000", kindMalformed, "message type 9 at offset 4"},
		{"00000007 00000000 00000002 000186a3", kindMalformed, "not a Call: 16 octets, which is shorter than any"},
		{"00000007 00000000 00000003 000186a3 00000003 00000001 00000000 00000000 00000000 00000000", kindMalformed, "RPC version 3 at offset 8, there is only 2"},
		{head + "00000001 00000191 00000000 00000000", kindMalformed, "not a Call: credential of 401 octets at offset 28, 400 are allowed"},
		{head + "00000001 00000020 00000000 00000000", kindMalformed, "credential of 32 octets at offset 28, the message ends at 40"},
		{head + "00000000 00000000 00000000 000001f4", kindMalformed, "verifier of 500 octets at offset 36, 400 are allowed"},
		{"00000007 00000001 00000000", kindMalformed, "not a Reply: it ends at offset 12, inside verf"},
		{"00000007 00000001 00000002 00000000", kindMalformed, "not a Reply: reply_stat is 2 at offset 8, which means nothing"},
		{"800000ff" + head, kindCut, "a Call of which 24 octets are in the input: too few for its header"},
		{"80000030 00000007 00000000 00000002", kindCut, "a Call of which 12 octets are in the input"},
		{"80000030 00000007 00000001 00000000", kindCut, "a Reply of which 12 octets are in the input"},
	} {
		m := explained(t, nil, "--hex", tc.in)
		if m.Kind != tc.kind || !strings.Contains(m.Problem, tc.want) {
			t.Errorf("%s: %s, %q, want %s, %q", tc.in, m.Kind, m.Problem, tc.kind, tc.want)
		}
		if out, errOut, code := explainArgs(t, []byte(tc.in)); code != exitDone || errOut != "" || !strings.Contains(out, m.Problem) {
			t.Errorf("%s: exit code %d, %s: %s", tc.in, code, errOut, out)
		}
	}
}

// What the bridge answers itself, and credentials that few use.
func TestExplainCredentials(t *testing.T) {
	header := func(flavor, length string) string {
		return "00000007 00000000 00000002 000186a3 00000003 00000000 " + flavor + length
	}
	for _, tc := range []struct{ in, name, protection, means, local string }{
		{header("00000000", "00000000 00000000 00000000"), "AUTH_NONE", "none", "may be placed directly", ""},
		{header("00000007", "00000000 00000000 00000000"), "AUTH_TLS", "unknown", "speaks TLS", "no TLS here"},
		{header("00000003", "00000004 aabbccdd 00000000 00000000"), "AUTH_DH", "unknown", "is not known", ""},
		{header("00000063", "00000000 00000000 00000000"), "flavor 99", "unknown", "is not known", ""},
		{header("00000006", "00000004 00000001 00000000 00000000"), "RPCSEC_GSS", "unknown", "is not known", ""},
	} {
		m := explained(t, nil, "--hex", tc.in)
		if m.Call == nil {
			t.Fatalf("%s: %+v", tc.name, m)
		}
		c := &m.Call.Credential
		if c.Name != tc.name || m.Call.Protection != tc.protection || !strings.Contains(c.Means, tc.means) || !strings.Contains(m.Call.Local, tc.local) || (tc.local == "") != (m.Call.Local == "") {
			t.Errorf("%s: %+v, %q", tc.name, c, m.Call.Local)
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
	first := func(args ...string) header {
		out, errOut, code := explainArgs(t, nil, append(args, "--hex", call, "--json")...)
		if code != exitDone {
			t.Fatalf("exit code %d: %s", code, errOut)
		}
		var h header
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := first("--config", config)
	if h.InlineCall != 8<<10 || h.InlineReply != 2<<10 || h.MaxIO != 64<<10 || h.MaxReply != 72<<10 || !strings.HasSuffix(h.From, ", upstream storage") {
		t.Errorf("with a file: %+v", h)
	}
	if h := first("--config", config, "--inline-reply", "1024"); h.InlineCall != 8<<10 || h.InlineReply != 1024 {
		t.Errorf("with a file and a flag: %+v", h)
	}
	if h := first(); h.InlineCall != 4096 || h.InlineReply != 4096 || h.MaxIO != 1<<20 || h.From != "" {
		t.Errorf("without: %+v", h)
	}
	m := explained(t, nil, "--config", config, "--hex", call)
	if m.Call.Analysis.ResultMax != 64<<10 || m.Call.Plan.Reply.Shape != shapeWriteChunk || m.Call.Plan.Reply.Octets != 64<<10 {
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
		{"no such file", []string{filepath.Join(dir, "none")}, exitFailed, "no such file"},
		{"a directory", []string{dir}, exitFailed, "is a directory"},
		{"empty", []string{write("empty", nil)}, exitFailed, "empty"},
		{"gzip", []string{write("gz", []byte{0x1f, 0x8b, 8, 0})}, exitFailed, "unpack it first"},
		{"text", []string{write("text", []byte("this is not hex\n"))}, exitFailed, "is no hex digit"},
		{"bad pcapng", []string{write("ng", []byte{0x0a, 0x0d, 0x0d, 0x0a, 1, 2, 3, 4})}, exitFailed, "not a capture"},
		{"bad hex", []string{"--hex", "zz"}, exitUsage, "is no hex digit"},
		{"odd hex", []string{"--hex", "123"}, exitUsage, "want an even number"},
		{"no hex", []string{"--hex", ""}, exitUsage, "no hex digits"},
		{"hex and file", []string{"--hex", "12", "x"}, exitUsage, "want one of them"},
		{"two files", []string{"x", "y"}, exitUsage, "accepts at most 1 arg"},
		{"max", []string{"--hex", "12", "--max", "-1"}, exitUsage, "want 0 or more"},
		{"inline too small", []string{"--hex", "12", "--inline-call", "512"}, exitUsage, "want 1024 to 262144 octets"},
		{"inline too large", []string{"--hex", "12", "--inline-reply", "1MiB"}, exitUsage, "want 1024 to 262144 octets"},
		{"no config", []string{"--hex", "12", "--config", filepath.Join(dir, "none")}, exitFailed, "no such file"},
		{"config without RDMA", []string{"--hex", "12", "--config", noRDMA}, exitFailed, "no upstream has transport rdma"},
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
	if code := executeCommand(cmd, []string{"explain", "../../internal/capture/testdata/tcp.pcap"}, brokenWriter{}, &e); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Whatever is read is explained or refused.
func FuzzExplain(f *testing.F) {
	v := vectors(f)
	for _, v := range v.Vectors {
		in, err := hex.DecodeString(hexRecord(f, v.Call) + hexRecord(f, v.Replies[0].Reply))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	for _, m := range v.RDMA {
		in, err := hex.DecodeString(m.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, args := range [][]string{nil, {"--json"}} {
			out, errOut, code := explainArgs(t, in, args...)
			switch {
			case code == exitFailed && out == "" && errOut != "":
			case code != exitDone || errOut != "":
				t.Fatalf("exit code %d: %s", code, errOut)
			}
		}
	})
}
