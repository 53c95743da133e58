package explain

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The binding of NFSv4 tells whether it can decode a whole COMPOUND, but not where the
// operations are. An opSplitter finds an operation by trial: it builds longer and longer
// COMPOUNDs of one operation until the binding can decode one. That COMPOUND has the octets of
// the operation and no others.

const (
	compoundProcedure = 1
	opIllegal         = 10044

	// maxProbes bounds the decoding attempts for one message. It suffices for some
	// 100 KiB of operations beside the data of one READ or WRITE.
	maxProbes = 1 << 15
	maxListed = 4096 // operations; more than any server accepts
)

// isCompound reports whether c is an NFSv4 COMPOUND.
func isCompound(c *oncrpc.Call) bool {
	return c.Program == oncrpc.ProgramNFS && c.Version == 4 && c.Procedure == compoundProcedure
}

// newCompound describes the operations of c. It returns nil unless c is a COMPOUND with
// readable arguments.
func (e *explainer) newCompound(c *oncrpc.Call, a *ulb.Analysis) *compound {
	if !isCompound(c) {
		return nil
	}
	start, end, ok := c.Arguments()
	if !ok {
		return nil
	}
	m := c.Message[:end]
	x := xdr.NewCursor(m, start)
	tag, n := x.Opaque()
	minor, count := x.Uint32(), x.Uint32()
	if !x.OK() {
		return nil
	}
	l := &compound{Tag: printable(m[tag : tag+n]), Minor: &minor, Count: count, Operations: []op{}}
	binding, limits := e.registry.Lookup(c.Program, c.Version), e.registry.Limits()
	var one ulb.Analysis
	probe := oncrpc.Call{Program: c.Program, Version: c.Version, Procedure: c.Procedure, Protection: oncrpc.ProtectNone}
	s := opSplitter{m: m, pos: x.Pos(), frame: []uint32{0, minor, 1}, skip: int(a.ArgPosition), length: int(a.ArgLength)}
	for range min(count, maxListed) {
		number, _, ok := s.next(func(b []byte) bool {
			one = ulb.Analysis{}
			probe.Message = b
			binding.Analyse(&probe, &limits, &one)
			return one.Known
		})
		if number == noOp {
			break
		}
		o := op{Number: number}
		if ok {
			o.Name = strings.TrimPrefix(one.Procedure, "COMPOUND/")
		} else {
			l.Rest = "cannot be decoded; the operations after it are not listed"
		}
		if l.Operations = append(l.Operations, o); !ok {
			break
		}
	}
	return l
}

// newResults describes the results in r, the Reply to k. It returns nil unless k is a
// COMPOUND with readable results.
func (e *explainer) newResults(k *knownCall, r *oncrpc.Reply) *compound {
	if !isCompound(&k.call) || k.call.Protection != oncrpc.ProtectNone {
		return nil
	}
	m := r.Message
	x := xdr.NewCursor(m, r.Results)
	x.Uint32()
	tag, n := x.Opaque()
	count := x.Uint32()
	if !x.OK() {
		return nil
	}
	l := &compound{Tag: printable(m[tag : tag+n]), Count: count, Operations: []op{}}
	item, _ := ulb.Reducible(k.binding, compoundProcedure, m)
	s := opSplitter{m: m, pos: x.Pos(), frame: []uint32{0, 0, 1}, skip: int(item.Pos), length: int(item.Length)}
	for i := range min(count, maxListed) {
		number, at, ok := s.next(func(b []byte) bool {
			_, _, _, err := k.binding.ResultItem(compoundProcedure, b, 0, false)
			return err == nil
		})
		if number == noOp || at+8 > len(m) {
			break
		}
		o := op{Number: number, Status: nfs.StatusName(4, binary.BigEndian.Uint32(m[at+4:]))}
		switch {
		case int(i) < len(k.operations) && k.operations[i].Number == number:
			o.Name = k.operations[i].Name
		case number == opIllegal:
			o.Name = "ILLEGAL"
		}
		if l.Operations = append(l.Operations, o); !ok {
			l.Rest = "cannot be decoded; the operations after it are not listed"
			break
		}
	}
	return l
}

// noOp is a number that no operation has.
const noOp = 1<<32 - 1

// An opSplitter splits the operations of a COMPOUND, or their results.
type opSplitter struct {
	m      []byte
	pos    int      // where the next operation begins
	frame  []uint32 // the words before the operation in a COMPOUND of one operation
	skip   int      // where a data item begins, which the splitter skips as a whole
	length int      // of the data item

	buf    []byte // the COMPOUND of one operation
	probes int    // attempts so far
}

// next returns the number and the position of the next operation, and moves behind the
// operation. It returns noOp at the end of the message. walk tells whether the binding
// can decode a COMPOUND of one operation; ok is false if it never can.
func (s *opSplitter) next(walk func(b []byte) bool) (number uint32, at int, ok bool) {
	at = s.pos
	if len(s.m)-at < 4 {
		return noOp, at, false
	}
	s.buf = s.buf[:0]
	for _, v := range s.frame {
		s.buf = xdr.AppendUint32(s.buf, v)
	}
	number = binary.BigEndian.Uint32(s.m[at:])
	s.buf = append(s.buf, s.m[at:at+4]...)
	for end := at + 4; s.probes < maxProbes; s.probes++ {
		if walk(s.buf) {
			s.pos = end
			return number, at, true
		}
		n := 4
		if end == s.skip && s.length > 0 {
			n = xdr.Roundup(s.length)
		}
		if n > len(s.m)-end {
			break
		}
		s.buf = append(slices.Grow(s.buf, n), s.m[end:end+n]...)
		end += n
	}
	return number, at, false
}

// A compound describes the operations of an NFSv4 COMPOUND or their results.
type compound struct {
	Tag        string  `json:"tag"`
	Minor      *uint32 `json:"minor_version,omitempty"` // only of a Call
	Count      uint32  `json:"count"`
	Operations []op    `json:"operations"`
	Rest       string  `json:"rest,omitempty"` // why Operations ends early
}

// An op describes one operation or its result.
type op struct {
	Number uint32 `json:"number"`
	Name   string `json:"name,omitempty"`
	Status string `json:"status,omitempty"` // only of a result
}

// String lists the operations, and the status of each that failed.
func (c *compound) String() string {
	var b strings.Builder
	for i := range c.Operations {
		o := &c.Operations[i]
		if i > 0 {
			b.WriteString(", ")
		}
		if o.Name != "" {
			b.WriteString(o.Name)
		} else {
			fmt.Fprintf(&b, "operation %d", o.Number)
		}
		if o.Status != "" && o.Status != "NFS4_OK" {
			fmt.Fprintf(&b, " %s", o.Status)
		}
	}
	switch {
	case c.Rest != "":
		fmt.Fprintf(&b, ", which %s", c.Rest)
	case uint64(len(c.Operations)) < uint64(c.Count):
		b.WriteString(", and operations that were not captured or are not listed")
	}
	return b.String()
}
