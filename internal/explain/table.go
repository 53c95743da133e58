package explain

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A tablePrinter prints one table by operation instead of messages, with the columns of nfsiostat:
// Options.Summary.
type tablePrinter struct {
	textPrinter
	json    bool
	seconds float64
	rows    map[operationKey]*operation
	calls   map[int]*tableCall // by the number of the message
}

type operationKey struct{ program, operation string }

// A tableCall is a Call whose Reply may come.
type tableCall struct {
	op  *operation
	leg tableLeg
}

// A tableLeg is where a message was captured.
type tableLeg uint8

const (
	legWire      tableLeg = iota // by tcpdump, between any two hosts
	legClients                   // by rdmabridge capture, as the next
	legUpstreams                 //
	tableLegs
)

// An operation is a row of the table, an object of the JSON output.
type operation struct {
	Program   string  `json:"program"` // such as nfs3
	Operation string  `json:"operation"`
	Calls     int     `json:"calls"`
	PerSecond float64 `json:"calls_per_second"`
	Bytes     int64   `json:"bytes"` // of Calls and Replies
	Retrans   int     `json:"retransmissions"`
	Errors    int     `json:"errors"` // Replies that are no success
	NoReply   int     `json:"no_reply"`

	// RTT is the average time between a Call and its Reply at the server's side, Exe at the client's
	// side, and Bridge what the bridge and the wait for a credit add to RTT. In seconds; nil if the capture
	// does not have that side.
	RTT    *float64 `json:"avg_rtt,omitempty"`
	Exe    *float64 `json:"avg_exe,omitempty"`
	Bridge *float64 `json:"avg_bridge,omitempty"`

	legs [tableLegs]legCounts
}

// A legCounts counts the messages of one leg.
type legCounts struct {
	calls, replies, retrans, errors int
	bytes                           int64
	after                           float64 // sum
	timed                           int     // Replies in after
}

func (l *legCounts) average() *float64 {
	if l.timed == 0 {
		return nil
	}
	v := l.after / float64(l.timed)
	return &v
}

func newTablePrinter(w io.Writer, asJSON bool) printer {
	return &tablePrinter{textPrinter: textPrinter{w: w}, json: asJSON, rows: make(map[operationKey]*operation), calls: make(map[int]*tableCall)}
}

func (p *tablePrinter) begin(h *header) error {
	if h.First != nil {
		p.seconds = h.Last.Sub(*h.First).Seconds()
	}
	return nil
}

// legOf returns the leg that the comments of a message name.
func legOf(m *message) tableLeg {
	for _, c := range m.Comments {
		switch {
		case strings.Contains(c, " leg=clients "):
			return legClients
		case strings.Contains(c, " leg=upstreams "):
			return legUpstreams
		}
	}
	return legWire
}

func (p *tablePrinter) message(m *message) error {
	switch {
	case m.Call != nil:
		key := operationKey{programLabel(m.Call), cmp.Or(strings.TrimPrefix(m.Call.ProcedureName, "COMPOUND/"), "other")}
		op := p.rows[key]
		if op == nil {
			op = &operation{Program: key.program, Operation: key.operation}
			p.rows[key] = op
		}
		c := &tableCall{op, legOf(m)}
		p.calls[m.Number] = c
		l := &op.legs[c.leg]
		l.bytes += m.Place.Octets
		if m.Call.Retransmission > 0 {
			l.retrans++
		} else {
			l.calls++
		}
	case m.Reply != nil:
		c := p.calls[m.Reply.Call]
		if c == nil {
			return nil
		}
		l := &c.op.legs[c.leg]
		l.bytes += m.Place.Octets
		if m.Reply.Duplicate {
			return nil
		}
		l.replies++
		if m.Reply.After != nil {
			l.after += *m.Reply.After
			l.timed++
		}
		if s := m.Reply.ProgramStatus; m.Reply.Status != acceptStats[0] || s != "" && !strings.HasSuffix(s, "_OK") {
			l.errors++
		}
	}
	return nil
}

// programLabel names the program and version of a Call, such as nfs3.
func programLabel(c *callPart) string {
	name := c.ProgramName
	switch {
	case c.Reverse:
		name = "callback"
	case name == "":
		name = "program " + strconv.Itoa(int(c.Program)) + " version "
	}
	return name + strconv.Itoa(int(c.Version))
}

func (p *tablePrinter) end(s *summary) error {
	all := make([]*operation, 0, len(p.rows))
	for _, o := range p.rows {
		o.finish(p.seconds)
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *operation) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Program, b.Program), cmp.Compare(a.Operation, b.Operation))
	})
	if p.json {
		enc := json.NewEncoder(p.w)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Kind       string       `json:"kind"`
			Seconds    float64      `json:"seconds"`
			Operations []*operation `json:"operations"`
			Unknown    int          `json:"unknown_files,omitempty"`
			Broken     string       `json:"broken,omitempty"`
		}{"operations", p.seconds, all, s.Unknown, s.Broken})
	}
	p.printf("%s in %s\n\n", count(s.Messages, "message"), time.Duration(p.seconds*float64(time.Second)).Round(time.Millisecond))
	p.printf("%-28s %8s %9s %11s %9s %7s %12s %12s %11s %6s\n", "operation", "ops", "ops/s", "kB/s", "kB/op", "retrans", "avg RTT (ms)", "avg exe (ms)", "bridge (ms)", "errors")
	for _, o := range all {
		p.printf("%-28s %8d %9.1f %11.1f %9.1f %7d %12s %12s %11s %6d\n", o.Program+" "+o.Operation, o.Calls, o.PerSecond,
			rate(float64(o.Bytes)/1024, p.seconds), rate(float64(o.Bytes)/1024, float64(o.Calls)), o.Retrans, milli(o.RTT), milli(o.Exe), milli(o.Bridge), o.Errors)
	}
	p.unknownFiles(s)
	if s.Broken != "" {
		p.printf("%s\n", s.Broken)
	}
	return p.err
}

// finish computes what follows from the counts. The client's side tells how many Calls there were, if
// the capture has it.
func (o *operation) finish(seconds float64) {
	side := &o.legs[legClients]
	switch {
	case side.calls > 0:
	case o.legs[legUpstreams].calls > 0:
		side = &o.legs[legUpstreams]
	default:
		side = &o.legs[legWire]
	}
	o.Calls, o.Bytes, o.Retrans, o.Errors, o.NoReply = side.calls, side.bytes, side.retrans, side.errors, max(0, side.calls-side.replies)
	o.PerSecond = rate(float64(o.Calls), seconds)
	o.Exe, o.RTT = o.legs[legClients].average(), o.legs[legUpstreams].average()
	if o.legs[legWire].calls > 0 {
		o.RTT = o.legs[legWire].average()
	}
	if o.Exe != nil && o.RTT != nil {
		b := *o.Exe - *o.RTT
		o.Bridge = &b
	}
}

// milli formats seconds as milliseconds.
func milli(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v*1000, 'f', 3, 64)
}

func rate(n, per float64) float64 {
	if per <= 0 {
		return 0
	}
	return n / per
}
