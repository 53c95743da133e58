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
// and shares no code with ulb.Compile, nor with what walks.
type encoder struct {
	*rand.Rand
	out   []byte
	most  int      // elements of an array
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

// encode appends a value of the layout s, or of nothing when quiet, and returns
// what of s follows the first character of stop that is not inside a bracket.
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

// repeat encodes the layout up to the bracket that closes it n times, behind a
// prefix each.
func (e *encoder) repeat(s, closing string, n int, prefix []byte) (rest string) {
	rest = e.encode(s, closing, true)
	for range n {
		e.out = append(e.out, prefix...)
		e.encode(s, closing, false)
	}
	return rest[1:]
}

// union encodes one arm, of those that have a value and the one that has none.
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
	results []byte // with number and status
	found   [][2]int
}

// makeOp encodes an operation, and a result of it that failed or not.
func makeOp(r *rand.Rand, row *op4Row, fails bool) randomOp {
	o := randomOp{op4Row: row}
	e := &encoder{Rand: r, most: 3, out: xdr.AppendUint32(nil, row.number)}
	e.encode(row.args, "", false)
	o.args, o.items = e.out, e.items
	switch row.number {
	case opRead, 68: // so that the data that come back are no more than count
		copy(o.args[4+24:], []byte{0, 0, 0, 100})
	case 26, 47, 50, 74: // likewise, at the places of their maxcounts
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

// COMPOUNDs of every operation, and Replies to them that end anywhere, are the
// same octet by octet when they have been reduced, the one item or the other,
// and put together again, by a peer that keeps to RFC 8166 and by those that
// leave roundup where it does not belong.
func TestRandomCompounds(t *testing.T) {
	r := rand.New(rand.NewPCG(8267, 8881))
	reg := ulb.NewRegistry(ulb.Limits{})
	Register(reg)
	seen := map[string]int{}
	count := map[string]int{}
	for i := range 6000 {
		minor := uint32(i % 3)
		var rows []*op4Row
		for j := range op4Rows {
			if op4Rows[j].number <= lastOp[minor] {
				rows = append(rows, &op4Rows[j])
			}
		}
		var ops []randomOp
		last := r.IntN(8)
		fails := r.IntN(3) == 0
		for k := range last + 1 {
			row := rows[r.IntN(len(rows))]
			switch {
			case k == 0:
				row = rows[i/3%len(rows)]
			case r.IntN(4) == 0:
				row = rows[slices.IndexFunc(rows, func(o *op4Row) bool { return o.number == opRead })]
			case r.IntN(4) == 0:
				row = rows[slices.IndexFunc(rows, func(o *op4Row) bool { return o.number == opWrite })]
			}
			seen[row.name]++
			ops = append(ops, makeOp(r, row, fails && k == last))
		}
		// The Reply to a COMPOUND that failed has no results behind the failure.
		unexecuted := 0
		if fails {
			unexecuted = r.IntN(3)
			for range unexecuted {
				ops = append(ops, makeOp(r, rows[r.IntN(len(rows))], false))
			}
		}
		checkCompound(t, reg, r, minor, ops, unexecuted, count)
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

func checkCompound(t *testing.T, reg *ulb.Registry, r *rand.Rand, minor uint32, ops []randomOp, unexecuted int, count map[string]int) {
	t.Helper()
	tag := make([]byte, r.IntN(9))
	call := xdr.AppendUint32(nil, 7)
	for _, w := range []uint32{oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0} {
		call = xdr.AppendUint32(call, w)
	}
	call = xdr.AppendUint32(xdr.AppendUint32(xdr.AppendOpaque(call, tag), minor), uint32(len(ops)))
	reply := xdr.AppendUint32(oncrpc.AppendAccepted(nil, 7, oncrpc.Success), ops[len(ops)-1-unexecuted].status)
	reply = xdr.AppendUint32(xdr.AppendOpaque(reply, tag), uint32(len(ops)-unexecuted))

	var args, found [][2]int // all eligible items
	var longest [2]int
	readClass, reads := 0, 0
	bounded := true // the results were made to be within what their table row says
	for i, o := range ops {
		for _, it := range o.items {
			it[0] += len(call)
			args = append(args, it)
			if o.number == opWrite && it[1] > longest[1] {
				longest = it
			}
		}
		call = append(call, o.args...)
		switch o.number {
		case opRead:
			reads++
			readClass++
		case opReadlink:
			readClass++
		case 9, 33, 52, 54, 55:
			bounded = false // what was asked for has nothing to do with what comes
		}
		if i >= len(ops)-unexecuted {
			continue
		}
		for _, it := range o.found {
			found = append(found, [2]int{it[0] + len(reply), it[1]})
		}
		reply = append(reply, o.results...)
	}
	bad := func(format string, v ...any) {
		t.Helper()
		var names []string
		for _, o := range ops {
			names = append(names, o.name)
		}
		t.Errorf("4.%d %v, call %x, reply %x: %s", minor, names, call, reply, fmt.Sprintf(format, v...))
	}

	var c oncrpc.Call
	if err := oncrpc.ParseCall(call, &c); err != nil {
		t.Fatal(err)
	}
	var a ulb.Analysis
	b := reg.Analyse(&c, &a)
	if !a.Known || a.ArgLength != uint32(longest[1]) || a.ArgLength > 0 && a.ArgPosition != uint32(longest[0]) {
		bad("%+v, want the argument %v", a, longest)
	}
	one := readClass == 1 && reads == 1
	if a.ResultMax != 0 && !one || a.ResultMax == 0 && one && a.MaxReply < reg.Limits().MaxReply {
		bad("%+v of %d READs in %d", a, reads, readClass)
	}
	if bounded {
		count["bounded"]++
		if len(reply) > int(a.MaxReply) {
			bad("MaxReply %d, Reply of %d", a.MaxReply, len(reply))
		}
	}
	if a.ArgLength > 0 {
		count["offered argument"]++
	}

	for _, it := range args {
		if it[1] == 0 {
			continue
		}
		count["argument"]++
		base := cut(call, it[0], it[1])
		var rc oncrpc.Call
		if err := oncrpc.ParseCall(base, &rc); err != nil {
			t.Fatal(err)
		}
		s, err := ulb.RestoreCall(b, &rc, uint32(it[0]), uint32(it[1]))
		if err != nil {
			bad("argument %v: %v", it, err)
		} else if got := put(s, base, call[it[0]:it[0]+it[1]]); !bytes.Equal(got, call) {
			bad("argument %v: restored %x", it, got)
		}
	}

	// Any selection of the arguments is eligible, and no other place is.
	var places []uint32
	wrong := false
	for _, it := range args {
		switch r.IntN(4) {
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
	if got := b.ArgItems(&c, places); got == wrong {
		bad("ArgItems(%v) = %v of %v", places, got, args)
	}
	if len(places) > 1 {
		count["several arguments"]++
	}

	s, ok := ulb.Reducible(b, compoundProc, reply)
	if ok != (len(found) > 0) || ok && (int(s.Pos) != found[0][0] || int(s.Length) != found[0][1]) {
		bad("Reducible = %+v, %v; want the first of %v", s, ok, found)
	}
	items := make([]ulb.Splice, 1+r.IntN(len(found)+2))
	if n := ulb.ReducibleItems(b, compoundProc, reply, items); n != min(len(items), len(found)) {
		bad("ReducibleItems = %d of %d for %d", n, len(found), len(items))
	} else {
		for i, s := range items[:n] {
			if int(s.Pos) != found[i][0] || int(s.Length) != found[i][1] || int(s.Padding) != xdr.Padding(found[i][1]) {
				bad("item %d is %+v, want %v", i, s, found[i])
			}
		}
		if n > 1 {
			count["several"]++
		}
	}
	if len(found) != 1 || found[0][1] == 0 {
		return
	}
	count["result"]++
	if a.ResultMax > 0 {
		count["offered result"]++
	}
	pos, n := found[0][0], found[0][1]
	data, padding := reply[pos:pos+n], xdr.Padding(n)
	base := cut(reply, pos, n)
	kept := slices.Concat(reply[:pos], reply[pos+n:])
	for _, tt := range []struct {
		base    []byte
		written int
	}{{base, n}, {base, n + padding}, {kept, n}, {kept, n + padding}} {
		s, spliced, err := ulb.Restore(b, compoundProc, tt.base, uint32(tt.written))
		if err != nil || !spliced {
			bad("base %x, %d written: %v", tt.base, tt.written, err)
		} else if got := put(s, tt.base, slices.Concat(data, make([]byte, padding))); !bytes.Equal(got, reply) {
			bad("base %x, %d written: restored %x", tt.base, tt.written, got)
		}
	}
}

// The rows are what the RFCs number, each once and none missing.
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
