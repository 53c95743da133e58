package rdmaside

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Conformance: the rules of RFC 8166 for a Responder and for a Requester,
// sentence by sentence. Each has a case that would fail if the rule were broken.
// The tests print the rules and what was observed as two tables, with -v, or
// append them to the file that RDMABRIDGE_CONFORMANCE names: make conformance.

// A conformanceCase is a row of the table: a rule, and the test that shows that
// it is kept. T is *responderCase or *requesterCase.
type conformanceCase[T any] struct {
	section string // of RFC 8166, unless it begins with the number of another RFC
	says    string
	setup   func(tc T)
	run     func(tc T)
	same    func(t *testing.T) // another test that shows it; used in place of run
	departs string             // why the rule is not kept; run then shows what the code does instead
	reverse bool               // the case uses the reverse direction: RFC 8167
	inline  int                // the inline threshold of what is sent, in octets; 0 means 4096
}

// A sentRule is a rule about every message that the role sends, in all cases
// together.
type sentRule struct {
	section string
	says    string
	breaks  func(m *sentMessage) bool
	broken  []*sentMessage // messages that break it: each shows that breaks can see that
}

// A sentMessage is a message of the side under test.
type sentMessage struct {
	octets  []byte
	words   [4]uint32      // XID, version, credits, procedure
	header  rpcrdma.Header // when ok
	payload []byte
	ok      bool // it could be decoded
	reverse bool // sent in a case that uses the reverse direction
	inline  int  // the inline threshold where it was sent, in octets
}

func newSentMessage(b []byte, reverse bool, inline int) *sentMessage {
	m := &sentMessage{octets: b, reverse: reverse, inline: cmp.Or(inline, 4096)}
	for i := range m.words {
		if len(b) >= 4*i+4 {
			m.words[i] = binary.BigEndian.Uint32(b[4*i:])
		}
	}
	n, err := m.header.Decode(b)
	if m.ok = err == nil; m.ok {
		m.payload = b[n:]
	}
	return m
}

// String returns the message as it appears in the tables.
// broken returns a message of the given parts, to show that a sentRule can be broken.
func broken(parts ...[]byte) *sentMessage { return newSentMessage(bytes.Join(parts, nil), false, 0) }

func (m *sentMessage) String() string {
	proc := rpcrdma.Proc(m.words[3])
	s := fmt.Sprintf("%v, credits %d", proc, m.words[2])
	if m.words[1] != rpcrdma.Version {
		s += fmt.Sprintf(", version %d", m.words[1])
	}
	if proc == rpcrdma.Error && len(m.octets) >= 20 {
		return s + fmt.Sprintf(", %v", rpcrdma.ErrCode(binary.BigEndian.Uint32(m.octets[16:])))
	}
	if !m.ok {
		return s + fmt.Sprintf(", %d octets", len(m.octets))
	}
	lengths := func(segments []rpcrdma.Segment) string {
		var s []string
		for i := range segments {
			if i == 4 && len(segments) > 5 {
				s = append(s, fmt.Sprintf("%d more", len(segments)-i))
				break
			}
			s = append(s, fmt.Sprint(segments[i].Length))
		}
		return "[" + strings.Join(s, " ") + "]"
	}
	for i := range m.header.Reads {
		r := &m.header.Reads[i]
		s += fmt.Sprintf(", Read %d at %d", r.Length, r.Position)
	}
	for i := range m.header.Writes {
		s += ", Write " + lengths(m.header.Writes[i].Segments)
	}
	if m.header.Reply != nil {
		s += ", Reply chunk " + lengths(m.header.Reply.Segments)
	}
	if len(m.payload) >= 24 && binary.BigEndian.Uint32(m.payload[4:]) == 1 && binary.BigEndian.Uint32(m.payload[20:]) != 0 && len(m.payload) == 24 {
		return s + fmt.Sprintf(", accept_stat %d", binary.BigEndian.Uint32(m.payload[20:]))
	}
	if proc == rpcrdma.Msg {
		s += fmt.Sprintf(", %d octets inline", len(m.payload))
	}
	return s
}

// An observer reports what happened to the side under test.
type observer interface {
	sentMessages() [][]byte
	outcome() string
}

func (p *fakePeer) sentMessages() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history
}

func (tc *responderCase) sentMessages() [][]byte { return tc.peer.sentMessages() }
func (tc *requesterCase) sentMessages() [][]byte { return tc.peer.sentMessages() }

func (tc *responderCase) outcome() string { return endOf(tc.ended, tc.endedErr) }

func (tc *requesterCase) outcome() string {
	s := ""
	for _, o := range tc.outcomes {
		if s == "" || !strings.HasSuffix(s, o) {
			s += "; call " + o
		}
	}
	return strings.TrimPrefix(s+"; "+endOf(tc.ended, tc.endedErr), "; ")
}

func endOf(n int, err error) string {
	if n == 0 {
		return "connection up"
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		err = e
	}
	return fmt.Sprintf("connection closed: %v", err)
}

// seen summarises messages: the last ones, with repetitions counted.
func seen(messages [][]byte) string {
	var parts []string
	n := 1
	for _, b := range messages {
		s := newSentMessage(b, false, 0).String()
		if k := len(parts) - 1; k >= 0 && strings.TrimSuffix(parts[k], fmt.Sprintf(" (%d times)", n)) == s {
			n++
			parts[k] = fmt.Sprintf("%s (%d times)", s, n)
			continue
		}
		n = 1
		parts = append(parts, s)
	}
	const most = 2
	if k := len(parts) - most; k > 0 {
		parts = append([]string{fmt.Sprintf("%d others", k)}, parts[k:]...)
	}
	if len(parts) == 0 {
		return "nothing is sent"
	}
	return strings.Join(parts, "; ")
}

type conformanceRow struct {
	section, says, seen string
	departs             string
	passed              bool
}

// conform runs the cases of a role and prints its table. harness is requesterTest
// or responderTest.
func conform[T observer](t *testing.T, role string, harness func(t *testing.T, setup, f func(tc T)), cases []conformanceCase[T], sent []sentRule) {
	var rows []conformanceRow
	var all []*sentMessage
	for _, c := range cases {
		row := conformanceRow{section: c.section, says: c.says, departs: c.departs}
		row.passed = t.Run(c.section+" "+c.says, func(t *testing.T) {
			if c.same != nil {
				c.same(t)
				name := runtime.FuncForPC(reflect.ValueOf(c.same).Pointer()).Name()
				row.seen = name[strings.LastIndexByte(name, '.')+1:]
				return
			}
			harness(t, c.setup, func(tc T) {
				defer func() {
					messages := tc.sentMessages()
					row.seen = seen(messages) + "; " + tc.outcome()
					for _, b := range messages {
						all = append(all, newSentMessage(b, c.reverse, c.inline))
					}
				}()
				c.run(tc)
			})
		})
		rows = append(rows, row)
	}
	for _, r := range sent {
		row := conformanceRow{section: r.section, says: r.says}
		row.passed = t.Run(r.section+" "+r.says, func(t *testing.T) {
			if len(all) < 100 {
				t.Errorf("%d messages show nothing", len(all))
			}
			if len(r.broken) == 0 {
				t.Error("no message shows that the rule can be broken")
			}
			for _, m := range r.broken {
				if !r.breaks(m) {
					t.Errorf("%v: %x breaks the rule, and that is not seen", m, head(m.octets))
				}
			}
			bad := 0
			for _, m := range all {
				if r.breaks(m) {
					bad++
					t.Errorf("%v: %x", m, head(m.octets))
				}
			}
			row.seen = fmt.Sprintf("%d of %d messages in the cases of this table do otherwise", bad, len(all))
		})
		rows = append(rows, row)
	}
	b := conformanceTable(role, rows)
	if name := os.Getenv("RDMABRIDGE_CONFORMANCE"); name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(b); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if testing.Verbose() {
		t.Log("\n" + b)
	}
}

func conformanceTable(role string, rows []conformanceRow) string {
	var b strings.Builder
	failed, departures := 0, 0
	fmt.Fprintf(&b, "## %s\n\n| Section | Rule | Seen | Kept |\n|---|---|---|---|\n", role)
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, r := range rows {
		kept := "yes"
		switch {
		case !r.passed:
			kept = "FAILED"
			failed++
		case r.departs != "":
			kept = "no: " + r.departs
			departures++
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.section, cell.Replace(r.says), cell.Replace(r.seen), cell.Replace(kept))
	}
	fmt.Fprintf(&b, "\n%s: %d rules, %d departures, %d failures.\n\n", role, len(rows), departures, failed)
	return b.String()
}

// wantSections fails when a section has no row.
func wantSections[T any](t *testing.T, cases []conformanceCase[T], sent []sentRule, sections string) {
	t.Helper()
	have := map[string]bool{}
	for _, c := range cases {
		have[c.section] = true
	}
	for _, r := range sent {
		have[r.section] = true
	}
	for s := range strings.FieldsSeq(sections) {
		if !have[s] {
			t.Errorf("Section %s has rules and no row", s)
		}
	}
}
