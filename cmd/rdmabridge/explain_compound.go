package main

import (
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/xdr"
)

// newCompound describes c when it is an NFSv4 COMPOUND that can be read.
func newCompound(c *oncrpc.Call) *compound {
	if c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != 1 {
		return nil
	}
	start, end, ok := c.Arguments()
	if !ok {
		return nil
	}
	x := xdr.NewCursor(c.Message[:end], start)
	pos, n := x.Opaque()
	minor, count := x.Uint32(), x.Uint32()
	if !x.OK() {
		return nil
	}
	return &compound{Tag: printable(c.Message[pos : pos+n]), Minor: minor, Count: count, Operations: []op{}}
}

// newResults describes the results of a COMPOUND.
func newResults(c *oncrpc.Call, r *oncrpc.Reply) *compound {
	if c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != 1 {
		return nil
	}
	x := xdr.NewCursor(r.Message, r.Results)
	x.Uint32()
	pos, n := x.Opaque()
	count := x.Uint32()
	if !x.OK() {
		return nil
	}
	return &compound{Tag: printable(r.Message[pos : pos+n]), Count: count, Operations: []op{}}
}
