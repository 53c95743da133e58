package faults

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPlanErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "no rules",
		"rules: []":                           "no rules",
		"sed: 1\nrules: [{fault: reset}]":     "line 1: sed does not belong here",
		"rules: [{fault: explode}]":           `fault "explode": want one of delay, reorder`,
		"rules: [{fault: delay}]":             "want a `delay`",
		"rules: [{fault: delay, delay: 2h}]":  `line 1: "2h": want a time from 0s to 1h0m0s`,
		"rules: [{fault: delay, delay: -1s}]": "want a time from 0s",
		"rules: [{fault: delay, delay: 1s, credits: 1}]":             "delay takes no `credits`; it takes delay, jitter",
		"rules: [{fault: drop_call, octets: 1}]":                     "it takes no settings",
		"rules: [{fault: reset, probability: 2}]":                    "probability 2: want 0 to 1",
		"rules: [{fault: reset, from: 2s, until: 1s}]":               "until 1s is not after from 2s",
		"rules: [{fault: rpc_error, error: EIO}]":                    `error "EIO": want SYSTEM_ERR`,
		"rules: [{fault: cut, how: gently}]":                         `how "gently": want reset or close`,
		"rules: [{fault: wrong_xid, where: here}]":                   `where "here": want both`,
		"rules: [{fault: cut, octets: -1}]":                          "octets -1",
		"rules: [{fault: reorder, replies: 65}]":                     "replies 65",
		"rules: [{fault: freeze}]":                                   "want a `delay`: how long",
		"rules: [{fault: grant, match: {transport: tcp}}]":           "grant is a fault of rdma",
		"rules: [{fault: reset, match: {transport: udp}}]":           `match.transport "udp"`,
		"rules: [{fault: reset, match: {program: nsf}}]":             `match.program "nsf"`,
		"rules: [{fault: reset, match: {client: here}}]":             `match.client "here"`,
		"rules: [{fault: refuse, match: {operations: [READ]}}]":      "no operation",
		"rules: [" + strings.Repeat("{fault: reset},", 300) + "]":    "300 rules are too many; write 256 at most",
		strings.Repeat("#", maxPlan+1):                               "longer than",
		"rules: [{fault: explode}, {fault: reset}, {fault: delay}]":  "rules[2]: want a `delay`",
		"rules: [{fault: reset, match: {client: 10.0.0.0/8, x: 1}}]": "line 1: x does not belong here",
	} {
		_, err := Load([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	plan, err := Load([]byte(`rules:
  - {fault: reset, match: {program: nfs, versions: [3, 4], operations: [read]}}
  - {fault: reset, match: {operations: [COMPOUND/OPEN]}}
  - {fault: reset, match: {client: 10.0.0.0/8, transport: tcp}}
  - {fault: grant}
  - {fault: chunk_short}
  - {fault: chunk_missing}
  - {fault: reset, from: 1s, until: 2s}
  - {fault: refuse}
  - {fault: reset, match: {program: "300", min_length: 9}}
`))
	if err != nil {
		t.Fatal(err)
	}
	peer := func(s string) incident { return incident{transport: overTCP, peer: netip.MustParseAddr(s)} }
	read := incident{transport: overTCP, program: 100003, version: 3, operation: "READ"}
	compound := incident{transport: overRDMA, program: 100003, version: 4, operation: "COMPOUND/READ", reply: true}
	open := incident{transport: overRDMA, program: 100003, version: 4, operation: "COMPOUND/OPEN", write: true}
	for _, tt := range []struct {
		name string
		c    incident
		want []int
	}{
		{"READ", read, []int{0}},
		{"READ of version 2", incident{transport: overTCP, program: 100003, version: 2, operation: "READ"}, nil},
		{"COMPOUND with READ", compound, []int{0, 3, 4}},
		{"COMPOUND with OPEN", open, []int{1, 3, 4, 5}},
		{"a client", peer("10.1.2.3"), []int{2}},
		{"a client as IPv6 has it", peer("::ffff:10.1.2.3"), []int{2}},
		{"another client", peer("11.1.2.3"), nil},
		{"early", incident{transport: overTCP, since: time.Second - 1}, nil},
		{"in time", incident{transport: overTCP, since: time.Second}, []int{6}},
		{"late", incident{transport: overTCP, since: 2 * time.Second}, nil},
		{"a connection", incident{transport: overTCP, connection: true, since: time.Hour}, []int{7}},
		{"a short Call", incident{transport: overTCP, program: 300, length: 8}, nil},
		{"a long Call", incident{transport: overTCP, program: 300, length: 9}, []int{8}},
	} {
		var got []int
		for i := range plan.Rules {
			if plan.Rules[i].matches(&tt.c) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: rules %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestExamples: the examples can be loaded, and the guide has the table of all faults.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../configs/examples/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		if _, err := LoadFile(f); err != nil {
			t.Error(err)
		}
	}
	guide, err := os.ReadFile("../../docs/fault-server.md")
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := Markdown(&table); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE_FAULTS") == "1" {
		const begin, end = "<!-- faults: UPDATE_FAULTS=1 go test ./internal/faults -->\n", "<!-- end -->\n"
		before, rest, _ := bytes.Cut(guide, []byte(begin))
		_, after, _ := bytes.Cut(rest, []byte(end))
		guide = bytes.Join([][]byte{before, []byte(begin), table.Bytes(), []byte(end), after}, nil)
		if err := os.WriteFile("../../docs/fault-server.md", guide, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Contains(guide, table.Bytes()) {
		t.Error("docs/fault-server.md has another table of faults; write it with UPDATE_FAULTS=1 go test ./internal/faults")
	}
}
