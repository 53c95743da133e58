package explain

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The binding of NFSv4 says whether a whole COMPOUND can be walked and not where
// its operations are. They are found by asking it of COMPOUNDs of one operation:
// the one that it can walk has all of the operation's octets and no more.

const (
	compoundProcedure = 1
	opIllegal         = 10044

	// maxProbes bounds the questions about one message, which is some 100 KiB of
	// operations other than one READ or WRITE.
	maxProbes = 1 << 15
	maxListed = 4096 // operations, which is more than any server takes
)

// isCompound reports whether c is an NFSv4 COMPOUND.
func isCompound(c *oncrpc.Call) bool {
	return c.Program == oncrpc.ProgramNFS && c.Version == 4 && c.Procedure == compoundProcedure
}

// newCompound describes c when it is a COMPOUND that can be read.
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
			l.Rest = "is not understood, nor what follows it"
		}
		if l.Operations = append(l.Operations, o); !ok {
			break
		}
	}
	return l
}

// newResults describes the results of a COMPOUND, of which k is the Call.
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
		o := op{Number: number, Status: nfsStatus(4, binary.BigEndian.Uint32(m[at+4:]))}
		switch {
		case int(i) < len(k.operations) && k.operations[i].Number == number:
			o.Name = k.operations[i].Name
		case number == opIllegal:
			o.Name = "ILLEGAL"
		}
		if l.Operations = append(l.Operations, o); !ok {
			l.Rest = "is not understood, nor what follows it"
			break
		}
	}
	return l
}

// noOp is no operation's number.
const noOp = 1<<32 - 1

// An opSplitter finds where operations end.
type opSplitter struct {
	m      []byte
	pos    int      // of the next operation
	frame  []uint32 // what a COMPOUND of one operation begins with
	skip   int      // a data item, whose inside is not tried
	length int

	buf    []byte
	probes int
}

// next returns the number of the next operation, noOp when there is none, and its
// position, and moves behind it. ok is false when walk never says that it has all
// of it.
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

// A compound is an NFSv4 COMPOUND.
type compound struct {
	Tag        string  `json:"tag"`
	Minor      *uint32 `json:"minor_version,omitempty"` // of a Call
	Count      uint32  `json:"count"`
	Operations []op    `json:"operations"`
	Rest       string  `json:"rest,omitempty"` // what is wrong with the last of Operations, when not all are there
}

// An op is an operation of a COMPOUND or its result.
type op struct {
	Number uint32 `json:"number"`
	Name   string `json:"name,omitempty"`
	Status string `json:"status,omitempty"` // of a result
}

// String lists the operations, those of a Reply with the status of the last.
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
		b.WriteString(", and what was not captured or not listed")
	}
	return b.String()
}
