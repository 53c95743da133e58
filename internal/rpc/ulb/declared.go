package ulb

import "github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"

// A Declaration is what an operator says of procedures of a program that no binding knows.
type Declaration struct {
	// Procedures are numbers. An empty list stands for all procedures that no earlier Declaration names.
	Procedures []uint32

	// Class is the effect of executing a Call twice: ReadOnly, Idempotent or NonIdempotent.
	Class Class

	// MaxReply is the most octets of the results.
	MaxReply uint32
}

// Declare makes declarations the binding of a program and version. Of them the first that has a procedure counts.
// Nothing is eligible for direct data placement, as with [Generic]: only who knows the arguments could tell
// where an item lies. Declare panics as Bind does.
//
// A server that answers with more than MaxReply breaks the operator's word, and its Reply has no place. A Call of
// class ReadOnly is then sent again with the largest Reply chunk; of another Call the client gets SYSTEM_ERR.
func (reg *Registry) Declare(program, version uint32, declarations []Declaration) {
	reg.Bind(program, version, &declared{list: declarations})
}

// IsDeclared reports whether the binding of a program and version was made by Declare.
func (reg *Registry) IsDeclared(program, version uint32) bool {
	_, ok := reg.Lookup(program, version).(*declared)
	return ok
}

// A declared is the binding of a program that the operator has described.
type declared struct {
	generic
	list []Declaration
}

// Analyse fills a from the Declaration of the Call's procedure. Without one it leaves a as it is.
func (d *declared) Analyse(c *oncrpc.Call, _ *Limits, a *Analysis) { d.analyse(c.Procedure, a) }

// Fixed implements Fixer: whatever the arguments are, the Declaration holds.
func (d *declared) Fixed(procedure uint32, a *Analysis) (args Layout, ok bool) {
	if procedure == 0 {
		return nil, false // without arguments it is NULL
	}
	d.analyse(procedure, a)
	return anything, a.Known
}

func (d *declared) analyse(procedure uint32, a *Analysis) {
	for i := range d.list {
		x := &d.list[i]
		if !x.has(procedure) {
			continue
		}
		a.Known, a.Class = true, x.Class
		a.Changes = x.Class != ReadOnly
		a.MaxReply, a.MaxReduced = x.MaxReply, x.MaxReply
		a.Guess = true // nothing holds the server to it
		return
	}
}

// Keeps reports whether the procedure is declared to change nothing. Its arguments need not be read for that.
func (d *declared) Keeps(procedure uint32) bool {
	for i := range d.list {
		if d.list[i].has(procedure) {
			return d.list[i].Class == ReadOnly
		}
	}
	return false
}

func (x *Declaration) has(procedure uint32) bool {
	if len(x.Procedures) == 0 {
		return true
	}
	for _, n := range x.Procedures {
		if n == procedure {
			return true
		}
	}
	return false
}
