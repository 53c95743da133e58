package nfs

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// NFS version 4, minor versions 0, 1 and 2. It has one procedure, COMPOUND, of
// any number of operations:
//
//	COMPOUND4args: tag<>, minorversion, argarray<>{argop, arguments}
//	COMPOUND4res:  status, tag<>, resarray<>{resop, status, results}
//
// RFC 7530 Section 14.2, RFC 8881 Section 16.2. op4Rows has the layouts of each
// operation's arguments and results. The server stops after the first operation that
// fails, so its result is the last one.
//
// Analyse lets the data of one READ or one WRITE travel by a chunk. RFC 8267 Section 6
// allows more than that, but servers do not implement it correctly, so a COMPOUND with
// more is carried whole. An RDMA client may use any number of chunks: ResultItems and
// ArgItems find them all.
type compound struct{}

var v4 ulb.Binding = compound{}

// maxOps bounds the work on one Call. No client sends and no server accepts so many
// operations; the limit of Linux is 50.
const maxOps = 4096

// maxUnknownOp is above the number of every future operation: the IETF assigns numbers in
// sequence. A greater number is not an operation's.
const maxUnknownOp = 255

// opsHeader: status, tag<> without its data, count of results.
const opsHeader = 4 + 4 + 4

// A summary holds the facts about the operations of a COMPOUND that Analyse collects.
type summary struct {
	octets  uint64 // of the Reply without eligible items
	items   uint64 // octets of all eligible items, with roundup
	guessed bool   // octets has a bound of Limits where the protocol has none
	layouts bool   // a GETATTR asks for fs_layout_type
	lower   ulb.Part
	asking  bool // an operation asks for data

	reads     int    // READ operations
	readlinks int    // READLINK operations
	item      uint32 // the most octets that the last eligible item may have

	class     ulb.Class
	sequenced int    // operations of class seq
	session   uint32 // position of the arguments of SEQUENCE when it comes first, or 0
	changes   bool   // an operation may change a file
	ops       ulb.SessionOps
	back      int  // position of the back channel's ca_maxrequestsize in a CREATE_SESSION
	named     *op4 // the operation that names the COMPOUND, and its number
	number    uint32

	writePos, writeLen int // data of the longest WRITE
}

// add adds an operation, whose arguments begin at pos and end at the position of w.
func (s *summary) add(o *op4, number uint32, pos int, w *ulb.Walk, m []byte, l *ulb.Limits) {
	s.class = max(s.class, o.class)
	s.ops |= o.sessionOp
	if !o.keeps && (o.keepsIf == nil || !o.keepsIf(m, pos)) {
		s.changes = true
	}
	if o.class == seq {
		s.sequenced++
	}
	if s.named == nil || o.weight > s.named.weight {
		s.named, s.number = o, number
		if number == opIllegal {
			s.number = opCompound
		}
	}
	s.octets += uint64(o.most)
	if o.bitmaps > 0 {
		s.octets += uint64(o.bitmaps) * bitmap4(l)
	}
	if o.identities > 0 {
		s.octets += uint64(o.identities) * identity4(l)
	}
	if o.size != nil { // CREATE_SESSION and WRITE have none
		s.addSize(o.size(m, pos, l), number)
		if len(o.asks) > 0 {
			s.asking = true
			if excessive(o.asks, m, pos, 0, l) {
				s.lower |= ulb.Arguments
			}
		}
		return
	}
	switch number {
	case opCreateSession:
		s.back = backRequest(m, pos)
		s.lower |= ulb.Arguments
	case opWrite:
		if w.Items > 0 && w.Length > s.writeLen {
			s.writePos, s.writeLen = w.Item, w.Length
		}
	}
}

// addSize adds the part of an operation's results that its arguments or Limits bound.
func (s *summary) addSize(size size4, number uint32) {
	s.octets += size.octets
	s.guessed = s.guessed || size.guessed
	s.layouts = s.layouts || size.layouts
	if size.maxIO {
		s.lower |= ulb.Results
	}
	switch number {
	case opRead:
		s.reads++
	case opReadlink:
		s.readlinks++
	default:
		return
	}
	s.item = size.item
	s.items += (uint64(size.item) + 3) &^ 3
}

// opCompound stands for a COMPOUND without any operation that is known. No operation has the number.
const opCompound = 1

// Operations implements ulb.Operator.
func (compound) Operations() (all []ulb.Operation, procedures int) {
	all = make([]ulb.Operation, len(ops4))
	for i, o := range ops4 {
		all[i] = ulb.Operation{Name: strings.TrimPrefix(o.name, "COMPOUND/"), Status: ulb.FirstStatus}
	}
	all[opCompound] = ulb.Operation{Name: "COMPOUND", Status: ulb.FirstStatus}
	return all, compoundProc + 1
}

// Analyse implements ulb.Binding.
func (compound) Analyse(c *oncrpc.Call, l *ulb.Limits, a *ulb.Analysis) {
	if c.Procedure != compoundProc {
		return
	}
	start, end, ok := c.Arguments()
	if !ok {
		return
	}
	m := c.Message[:end]
	a.Procedure, a.Operation = "COMPOUND", opCompound
	w := ulb.Walk{Cursor: xdr.NewCursor(m, start)}
	_, tag := w.Opaque()
	minor := w.Uint32()
	count := w.Uint32()
	if !w.OK() || minor >= uint32(len(lastOp)) || count > maxOps {
		return
	}
	s := summary{octets: opsHeader + uint64(xdr.Roundup(tag))}
	for i := range count {
		number := w.Uint32()
		o := op(minor, number)
		if o == nil || !w.OK() {
			return
		}
		pos := w.Pos()
		w.Items = 0
		o.args.Walk(&w)
		if !w.OK() {
			return
		}
		s.add(o, number, pos, &w, m, l)
		if i == 0 && number == opSequence {
			s.session = uint32(pos)
			a.Session = s.session // also when a later operation is unknown
		}
		a.Operation, a.Operations = uint16(s.number), uint16(i+1)
	}
	if w.Len() == 0 {
		s.fill(a, minor, l)
	}
}

// fill completes the Analysis of a COMPOUND that was walked to its end.
func (s *summary) fill(a *ulb.Analysis, minor uint32, l *ulb.Limits) {
	a.Known = true
	a.SessionOps = s.ops
	a.Changes = s.changes
	a.LayoutTypes = s.layouts
	a.BackRequest = uint32(s.back)
	if s.asking && s.octets+s.items > uint64(l.MaxReply-plainHeader) {
		s.lower |= ulb.Arguments
	}
	a.Lower = s.lower
	if s.named != nil {
		a.Procedure = s.named.name
	}
	switch {
	case s.session != 0:
		// The slot of the session identifies a retransmission of the whole COMPOUND:
		// RFC 8881 Section 2.10.6.
		a.Class = ulb.Sequenced
	case s.sequenced > 1:
		// One state owner's seqid says nothing about another's.
		a.Class = ulb.NonIdempotent
	default:
		a.Class = s.class
	}
	if s.writeLen > 0 {
		a.ArgPosition, a.ArgLength = uint32(s.writePos), uint32(s.writeLen)
	}
	if s.guessed && minor > 0 {
		// The session bounds it, or nothing does: RFC 8267 Section 6.2.2.
		a.MaxReply, a.MaxReduced = ulb.Unbounded, ulb.Unbounded
		return
	}
	a.Guess = s.guessed
	a.MaxReply = uint32(min(s.octets+s.items, ulb.Unbounded))
	a.MaxReduced = a.MaxReply
	if s.reads == 1 && s.readlinks == 0 {
		a.ResultMax = s.item
		a.MaxReduced = uint32(min(s.octets, ulb.Unbounded))
	}
}

// ResultItem implements ulb.Binding. Of several eligible items in a plain Reply
// it finds the first, which goes into the first Write chunk: RFC 8267 Section 6.4.1. A
// reduced Reply with several is an error, since a COMPOUND with several eligible
// results never offers a Write chunk.
func (compound) ResultItem(proc uint32, m []byte, results int, reduced bool) (pos, length uint32, ok bool, err error) {
	if proc != compoundProc {
		return 0, 0, false, nil
	}
	w := walkResults(m, results, reduced)
	var first ulb.Walk
	w.Skip(4)
	w.Opaque()
	for count := w.Uint32(); count > 0 && w.OK(); count-- {
		walkResult4(&w)
		if w.Items > 0 && first.Items == 0 {
			first.Items, first.Item, first.Length = w.Items, w.Item, w.Length
		}
	}
	if err := endResults(&w, m, "COMPOUND"); err != nil {
		return 0, 0, false, err
	}
	if reduced && w.Items > 1 {
		return 0, 0, false, fmt.Errorf("ulb/nfs: COMPOUND: %d items in a reduced Reply: %w", w.Items, errResults)
	}
	return uint32(first.Item), uint32(first.Length), first.Items > 0, nil
}

// ResultItems implements ulb.Binding: RFC 8267 Section 6.4.1. Each result has the number of its
// operation. So the n-th item belongs to the n-th READ or READLINK: an operation that fails has
// no item and is the last.
func (compound) ResultItems(proc uint32, m []byte, results int, items []ulb.Splice) (n int, err error) {
	if proc != compoundProc {
		return 0, nil
	}
	w := walkResults(m, results, false)
	w.Found = items
	w.Skip(4)
	w.Opaque()
	for count := w.Uint32(); count > 0 && w.OK(); count-- {
		walkResult4(&w)
	}
	return min(w.Items, len(items)), endResults(&w, m, "COMPOUND")
}

// walkResult4 steps over the result of one operation and returns its number and
// status. It accepts operations of every minor version, since the Reply does not have the
// minor version of its Call.
func walkResult4(w *ulb.Walk) (number, status uint32) {
	number, status = w.Uint32(), w.Uint32()
	o := op(uint32(len(lastOp)-1), number)
	switch {
	case o == nil:
		if number != opIllegal {
			w.Fail()
		}
	case status == 0:
		o.results.Walk(w)
	case status == o.failed, o.failed == anyStatus:
		o.failure.Walk(w)
	}
	return number, status
}

// ArgItem implements ulb.Binding.
func (compound) ArgItem(c *oncrpc.Call, pos uint32) (length uint32, ok bool) {
	if c.Procedure != compoundProc || !c.Reducible() || pos == 0 || uint64(pos) > uint64(len(c.Message)) {
		return 0, false
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(c.Message, c.Args), Absent: true, Position: int(pos)}
	w.Opaque()
	minor := w.Uint32()
	count := w.Uint32()
	if !w.OK() || count > maxOps {
		return 0, false
	}
	for range count {
		number := w.Uint32()
		o := op(minor, number)
		if !w.OK() {
			return 0, false
		}
		if o == nil {
			if number <= lastOp[len(lastOp)-1] || number > maxUnknownOp {
				return 0, false
			}
			return argBehind(c, &w, pos)
		}
		o.args.Walk(&w)
	}
	if !w.OK() || w.Len() != 0 || w.Items == 0 {
		return 0, false
	}
	return uint32(w.Length), true
}

// argBehind does what ArgItem does, for a COMPOUND with an unknown operation at the position of
// w. An item before the operation has been found by now. For an item behind it, argBehind
// trusts the Requester's position, as Generic does for an unknown program.
func argBehind(c *oncrpc.Call, w *ulb.Walk, pos uint32) (length uint32, ok bool) {
	if w.Items > 0 {
		return uint32(w.Length), true
	}
	if int(pos) < w.Pos()+4 {
		return 0, false
	}
	return ulb.Generic.ArgItem(c, pos)
}

// ArgItems implements ulb.Binding. Behind an unknown operation it trusts the Requester's
// positions, as argBehind does.
func (compound) ArgItems(c *oncrpc.Call, positions []uint32) bool {
	if c.Procedure != compoundProc || !c.Reducible() {
		return false
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(c.Message, c.Args), Wanted: positions}
	w.Opaque()
	minor := w.Uint32()
	count := w.Uint32()
	if !w.OK() || count > maxOps {
		return false
	}
	for range count {
		number := w.Uint32()
		o := op(minor, number)
		if !w.OK() {
			return false
		}
		if o == nil {
			if number <= lastOp[len(lastOp)-1] || number > maxUnknownOp {
				return false
			}
			return len(w.Wanted) == 0 || int(w.Wanted[0]) >= w.Pos()+4 && ulb.Generic.ArgItems(c, w.Wanted)
		}
		o.args.Walk(&w)
	}
	return w.OK() && w.Len() == 0 && len(w.Wanted) == 0
}
