package nfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// An encoder makes random values of the layouts in op4Rows. It reads their text
// and shares no code with ulb.Compile and Layout.Walk.
type encoder struct {
	*rand.Rand
	out   []byte
	most  int      // most elements of an array
	items [][2]int // eligible items: position, length
}

func (e *encoder) opaque(eligible bool) {
	p := make([]byte, e.IntN(40))
	for i := range p {
		p[i] = byte(e.Uint32())
	}
	if eligible {
		e.items = append(e.items, [2]int{len(e.out) + 4, len(p)})
	}
	e.out = xdr.AppendOpaque(e.out, p)
}

func (e *encoder) words(n int) {
	for range n {
		e.out = xdr.AppendUint32(e.out, e.Uint32())
	}
}

// encode appends a value of the layout s, or nothing when quiet. It stops before the first
// character of stop that is not inside a bracket, and returns the rest of s.
func (e *encoder) encode(s, stop string, quiet bool) string {
	q := &encoder{Rand: rand.New(rand.NewPCG(0, 0))}
	if !quiet {
		q = e
	}
	for s != "" && !strings.ContainsRune(stop, rune(s[0])) {
		c := s[0]
		s = s[1:]
		switch c {
		case ' ':
		case 'O', 'D':
			q.opaque(c == 'D')
		case 'B', 'F':
			n := q.IntN(4)
			q.out = xdr.AppendUint32(q.out, uint32(n))
			q.words(n)
			if c == 'F' {
				q.opaque(false)
			}
		case 'L':
			n := 1 + q.IntN(3)
			q.out = xdr.AppendUint32(q.out, uint32(n))
			q.opaque(false)
			if n == 3 {
				q.opaque(false)
			}
		case '[':
			n := q.IntN(q.most + 1)
			q.out = xdr.AppendUint32(q.out, uint32(n))
			s = q.repeat(s, "]", n, nil)
		case '?':
			n := q.IntN(2)
			q.out = xdr.AppendUint32(q.out, uint32(n))
			s = q.repeat(s[1:], ")", n, nil)
		case '*':
			s = q.repeat(s[1:], ")", q.IntN(q.most+1), []byte{0, 0, 0, 1})
			q.out = xdr.AppendUint32(q.out, 0)
		case '{':
			s = q.union(s)
		default:
			i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
			if i < 0 {
				i = len(s)
			}
			n, err := strconv.Atoi(string(c) + s[:i])
			if err != nil {
				panic(err)
			}
			q.words(n / 4)
			s = s[i:]
		}
	}
	return s
}

// repeat encodes the layout up to its closing bracket n times, each behind a prefix.
func (e *encoder) repeat(s, closing string, n int, prefix []byte) (rest string) {
	rest = e.encode(s, closing, true)
	for range n {
		e.out = append(e.out, prefix...)
		e.encode(s, closing, false)
	}
	return rest[1:]
}

// union encodes one of the arms, which may be the one without a value.
func (e *encoder) union(s string) (rest string) {
	type choice struct {
		value  uint32
		layout string
	}
	var choices []choice
	var fallback *string
	for {
		values, layout, _ := strings.Cut(s, ":")
		for v := range strings.SplitSeq(values, ",") {
			if v == "*" {
				fallback = &layout
				continue
			}
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				panic(err)
			}
			choices = append(choices, choice{uint32(n), layout})
		}
		s = e.encode(layout, "|}", true)
		end := s[0]
		s = s[1:]
		if end == '}' {
			break
		}
	}
	if fallback != nil {
		choices = append(choices, choice{1000 + e.Uint32N(1000), *fallback})
	}
	c := choices[e.IntN(len(choices))]
	e.out = xdr.AppendUint32(e.out, c.value)
	e.encode(c.layout, "|}", false)
	return s
}

// A randomOp is an operation of a random COMPOUND.
type randomOp struct {
	*op4Row
	args    []byte
	items   [][2]int // of args
	status  uint32
	results []byte // including number and status
	found   [][2]int
}

// makeOp encodes an operation and a result of its failure or success.
func makeOp(r *rand.Rand, row *op4Row, fails bool) randomOp {
	o := randomOp{op4Row: row}
	e := &encoder{Rand: r, most: 3, out: xdr.AppendUint32(nil, row.number)}
	e.encode(row.args, "", false)
	o.args, o.items = e.out, e.items
	switch row.number {
	case opRead, 68: // make count larger than the random results
		copy(o.args[4+24:], []byte{0, 0, 0, 100})
	case 26, 47, 50, 74: // likewise their maxcounts
		for _, at := range map[uint32][]int{26: {20}, 47: {20}, 50: {52}, 74: {8}}[row.number] {
			copy(o.args[4+at:], []byte{0, 0, 4, 0})
		}
	}
	layout := row.results
	if fails {
		layout = ""
		o.status = 1 + r.Uint32N(80)
		if row.failed != 0 && r.IntN(2) == 0 {
			o.status = row.failed
		}
		if row.failed == o.status || row.failed == anyStatus {
			layout = row.failure
		}
	}
	e = &encoder{Rand: r, most: 1, out: xdr.AppendUint32(xdr.AppendUint32(nil, row.number), o.status)}
	e.encode(layout, "", false)
	o.results, o.found = e.out, e.items
	return o
}

func cut(m []byte, pos, n int) []byte {
	return slices.Concat(m[:pos], m[pos+xdr.Roundup(n):])
}

func put(s ulb.Splice, base, chunk []byte) []byte {
	return slices.Concat(base[:s.Pos], chunk[:s.Length], make([]byte, s.Padding), base[s.Pos:])
}

// TestRandomCompounds reduces COMPOUNDs of every operation, and Replies to them that stop
// at any operation, by each eligible item, and puts them together again. They must be the
// same octet by octet, whether the peer keeps to RFC 8166 or leaves roundup where it does
// not belong.
func TestRandomCompounds(t *testing.T) {
	r := rand.New(rand.NewPCG(8267, 8881))
	reg := ulb.NewRegistry(ulb.Limits{})
	Register(reg)
	seen := map[string]int{}
	count := map[string]int{}
	for i := range 6000 {
		minor := uint32(i % 3)
		rows := rowsOf(minor)
		ops, unexecuted := randomOps(r, rows, rows[i/3%len(rows)])
		for _, o := range ops[:len(ops)-unexecuted] {
			seen[o.name]++
		}
		c := newCompoundCase(t, reg, r, minor, ops, unexecuted, count)
		for _, check := range []func(){
			c.checkAnalysis, c.checkArguments, c.checkArgItems, c.checkReducible, c.checkReducibleItems, c.checkRestore,
		} {
			check()
		}
		if t.Failed() {
			return
		}
	}
	for i := range op4Rows {
		if seen[op4Rows[i].name] < 20 {
			t.Errorf("%s was made %d times", op4Rows[i].name, seen[op4Rows[i].name])
		}
	}
	for _, what := range []string{"argument", "offered argument", "result", "offered result", "bounded", "several", "several arguments"} {
		if count[what] < 100 {
			t.Errorf("%d times %s", count[what], what)
		}
	}
}

// rowsOf returns the operations of a minor version.
func rowsOf(minor uint32) (rows []*op4Row) {
	for j := range op4Rows {
		if op4Rows[j].number <= lastOp[minor] {
			rows = append(rows, &op4Rows[j])
		}
	}
	return rows
}

// randomOps makes the operations of a COMPOUND. The first is of the given row. One in three
// COMPOUNDs fails: then the server does not execute the last operations, and the Reply has
// no results of them.
func randomOps(r *rand.Rand, rows []*op4Row, first *op4Row) (ops []randomOp, unexecuted int) {
	last := r.IntN(8)
	fails := r.IntN(3) == 0
	for k := range last + 1 {
		row := rows[r.IntN(len(rows))]
		switch {
		case k == 0:
			row = first
		case r.IntN(4) == 0:
			row = rows[slices.IndexFunc(rows, func(o *op4Row) bool { return o.number == opRead })]
		case r.IntN(4) == 0:
			row = rows[slices.IndexFunc(rows, func(o *op4Row) bool { return o.number == opWrite })]
		}
		ops = append(ops, makeOp(r, row, fails && k == last))
	}
	if fails {
		unexecuted = r.IntN(3)
		for range unexecuted {
			ops = append(ops, makeOp(r, rows[r.IntN(len(rows))], false))
		}
	}
	return ops, unexecuted
}

// A compoundCase is a random COMPOUND and a Reply to it, with the facts about both that
// their making tells.
type compoundCase struct {
	t       *testing.T
	reg     *ulb.Registry
	random  *rand.Rand
	count   map[string]int // cases seen, by kind
	names   []string       // of the operations
	minor   uint32
	message []byte
	reply   []byte

	args             [][2]int // position and length of every eligible item of the Call
	found            [][2]int // likewise of the Reply
	longest          [2]int   // the longest of args that is a WRITE's
	reads, readClass int      // READs; READs and READLINKs
	bounded          bool     // the results were made within the bounds of their rows

	call     oncrpc.Call
	binding  ulb.Binding
	analysis ulb.Analysis
}

func newCompoundCase(t *testing.T, reg *ulb.Registry, r *rand.Rand, minor uint32, ops []randomOp, unexecuted int, count map[string]int) *compoundCase {
	t.Helper()
	c := &compoundCase{t: t, reg: reg, random: r, count: count, minor: minor, bounded: true}
	tag := make([]byte, r.IntN(9))
	c.message = xdr.AppendUint32(nil, 7)
	for _, w := range []uint32{oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0} {
		c.message = xdr.AppendUint32(c.message, w)
	}
	c.message = xdr.AppendUint32(xdr.AppendUint32(xdr.AppendOpaque(c.message, tag), minor), uint32(len(ops)))
	executed := len(ops) - unexecuted
	c.reply = xdr.AppendUint32(oncrpc.AppendAccepted(nil, 7, oncrpc.Success), ops[executed-1].status)
	c.reply = xdr.AppendUint32(xdr.AppendOpaque(c.reply, tag), uint32(executed))
	for i, o := range ops {
		c.addArguments(o)
		if i < executed {
			c.addResults(o)
		}
	}
	if err := oncrpc.ParseCall(c.message, &c.call); err != nil {
		t.Fatal(err)
	}
	c.binding = reg.Analyse(&c.call, &c.analysis)
	return c
}

func (c *compoundCase) addArguments(o randomOp) {
	c.names = append(c.names, o.name)
	for _, it := range o.items {
		it[0] += len(c.message)
		c.args = append(c.args, it)
		if o.number == opWrite && it[1] > c.longest[1] {
			c.longest = it
		}
	}
	c.message = append(c.message, o.args...)
	switch o.number {
	case opRead:
		c.reads++
		c.readClass++
	case opReadlink:
		c.readClass++
	case 9, 33, 52, 54, 55:
		c.bounded = false // the random results do not depend on the arguments
	}
}

func (c *compoundCase) addResults(o randomOp) {
	for _, it := range o.found {
		c.found = append(c.found, [2]int{it[0] + len(c.reply), it[1]})
	}
	c.reply = append(c.reply, o.results...)
}

func (c *compoundCase) errorf(format string, v ...any) {
	c.t.Helper()
	c.t.Errorf("4.%d %v, call %x, reply %x: %s", c.minor, c.names, c.message, c.reply, fmt.Sprintf(format, v...))
}

func (c *compoundCase) checkAnalysis() {
	a := &c.analysis
	if !a.Known || a.ArgLength != uint32(c.longest[1]) || a.ArgLength > 0 && a.ArgPosition != uint32(c.longest[0]) {
		c.errorf("%+v, want the argument %v", *a, c.longest)
	}
	one := c.readClass == 1 && c.reads == 1
	if a.ResultMax != 0 && !one || a.ResultMax == 0 && one && a.MaxReply < c.reg.Limits().MaxReply {
		c.errorf("%+v of %d READs in %d", *a, c.reads, c.readClass)
	}
	if c.bounded {
		c.count["bounded"]++
		if len(c.reply) > int(a.MaxReply) {
			c.errorf("MaxReply %d, Reply of %d", a.MaxReply, len(c.reply))
		}
	}
	if a.ArgLength > 0 {
		c.count["offered argument"]++
	}
}

// checkArguments takes each argument out of the Call and puts it back.
func (c *compoundCase) checkArguments() {
	for _, it := range c.args {
		if it[1] == 0 {
			continue
		}
		c.count["argument"]++
		base := cut(c.message, it[0], it[1])
		var rc oncrpc.Call
		if err := oncrpc.ParseCall(base, &rc); err != nil {
			c.t.Fatal(err)
		}
		s, err := ulb.RestoreCall(c.binding, &rc, uint32(it[0]), uint32(it[1]))
		if err != nil {
			c.errorf("argument %v: %v", it, err)
		} else if got := put(s, base, c.message[it[0]:it[0]+it[1]]); !bytes.Equal(got, c.message) {
			c.errorf("argument %v: restored %x", it, got)
		}
	}
}

// checkArgItems selects some of the arguments, which are eligible, and sometimes another
// place, which is not.
func (c *compoundCase) checkArgItems() {
	var places []uint32
	wrong := false
	for _, it := range c.args {
		switch c.random.IntN(4) {
		case 0:
		case 1:
			if !wrong && it[1] > 8 {
				wrong = true
				places = append(places, uint32(it[0])+4)
				continue
			}
			fallthrough
		default:
			places = append(places, uint32(it[0]))
		}
	}
	if got := c.binding.ArgItems(&c.call, places); got == wrong {
		c.errorf("ArgItems(%v) = %v of %v", places, got, c.args)
	}
	if len(places) > 1 {
		c.count["several arguments"]++
	}
}

func (c *compoundCase) checkReducible() {
	s, ok := ulb.Reducible(c.binding, compoundProc, c.reply)
	if ok != (len(c.found) > 0) || ok && (int(s.Pos) != c.found[0][0] || int(s.Length) != c.found[0][1]) {
		c.errorf("Reducible = %+v, %v; want the first of %v", s, ok, c.found)
	}
}

func (c *compoundCase) checkReducibleItems() {
	items := make([]ulb.Splice, 1+c.random.IntN(len(c.found)+2))
	n := ulb.ReducibleItems(c.binding, compoundProc, c.reply, items)
	if n != min(len(items), len(c.found)) {
		c.errorf("ReducibleItems = %d of %d for %d", n, len(c.found), len(items))
		return
	}
	for i, s := range items[:n] {
		if int(s.Pos) != c.found[i][0] || int(s.Length) != c.found[i][1] || int(s.Padding) != xdr.Padding(c.found[i][1]) {
			c.errorf("item %d is %+v, want %v", i, s, c.found[i])
		}
	}
	if n > 1 {
		c.count["several"]++
	}
}

// checkRestore takes the only result out of a Reply, with its roundup or without, and puts
// it back, whether the peer wrote the roundup or not.
func (c *compoundCase) checkRestore() {
	if len(c.found) != 1 || c.found[0][1] == 0 {
		return
	}
	c.count["result"]++
	if c.analysis.ResultMax > 0 {
		c.count["offered result"]++
	}
	pos, n := c.found[0][0], c.found[0][1]
	data, padding := c.reply[pos:pos+n], xdr.Padding(n)
	base := cut(c.reply, pos, n)
	kept := slices.Concat(c.reply[:pos], c.reply[pos+n:])
	for _, tt := range []struct {
		base    []byte
		written int
	}{{base, n}, {base, n + padding}, {kept, n}, {kept, n + padding}} {
		s, spliced, err := ulb.Restore(c.binding, compoundProc, tt.base, uint32(tt.written))
		if err != nil || !spliced {
			c.errorf("base %x, %d written: %v", tt.base, tt.written, err)
		} else if got := put(s, tt.base, slices.Concat(data, make([]byte, padding))); !bytes.Equal(got, c.reply) {
			c.errorf("base %x, %d written: restored %x", tt.base, tt.written, got)
		}
	}
}

// The rows are the operations of the RFCs, each once and none missing.
func TestOperations(t *testing.T) {
	want := uint32(3)
	for _, r := range op4Rows {
		if r.number != want {
			t.Errorf("row of %s has number %d, want %d", r.name, r.number, want)
		}
		want++
	}
	if want != 76 {
		t.Errorf("the last row has number %d", want-1)
	}
	if op(0, 40) != nil || op(1, 59) != nil || op(2, 76) != nil || op(3, 3) != nil || op(2, 0xffffffff) != nil {
		t.Error("an operation of another minor version")
	}
	if op(0, 39) == nil || op(1, 58) == nil || op(2, 75) == nil {
		t.Error("the last operation of a minor version is missing")
	}
}
