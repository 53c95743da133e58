package ulb

import (
	"math"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Unbounded is the MaxReply and MaxReduced that a Binding sets for results without a
// bound. The Registry replaces it with Limits.MaxReply.
const Unbounded = math.MaxUint32

// A Registry holds the bindings of a process. The caller fills it at start-up. After
// that, all methods but Bind are safe for concurrent use.
type Registry struct {
	limits   Limits
	bindings []binding   // scanned in order of binding
	ops      []Operation // of all bindings, behind operation 0, which is that of Generic
}

// A binding is a Binding with the numbers of its operations.
type binding struct {
	key        uint64 // program<<32 | version
	bound      Binding
	first      uint16      // operation 0
	gss, other uint16      // the operation of GSS control procedures, and that of unknown procedures
	procedures []uint16    // the operation of each procedure
	fixed      []fixedCall // those that a Fixer knows, by procedure
}

// A fixedCall is a procedure with one Analysis for all Calls whose credential is AUTH_NONE or AUTH_SYS and whose
// arguments have the layout.
type fixedCall struct {
	args     Layout // nil: there is none
	analysis Analysis
}

// leastFixed is how many procedures a Fixer is asked about that is no Operator.
const leastFixed = 32

// NewRegistry returns a Registry without bindings, by which every Call is carried whole.
func NewRegistry(l Limits) *Registry {
	return &Registry{limits: l.withDefaults(), ops: []Operation{{Name: operationOther}}}
}

// Operations returns all operations of the bindings. The first stands for those of programs without a
// binding. The caller must not change them.
func (reg *Registry) Operations() []Operation { return reg.ops }

// Limits returns the limits in use, with the defaults filled in.
func (reg *Registry) Limits() Limits { return reg.limits }

// Bind makes b the binding of a program and version. Lookup searches bindings in the
// order in which they were bound, so bind the busiest first. Bind panics when the
// program and version have a binding already.
func (reg *Registry) Bind(program, version uint32, b Binding) {
	if reg.lookup(program, version) != nil {
		panic("BUG: ulb: program and version bound twice")
	}
	own, procs := []Operation{{}}, 1
	if o, ok := b.(Operator); ok {
		own, procs = o.Operations()
		own = slices.Clone(own)
	}
	own[0] = Operation{Name: "NULL"}
	n := binding{key: key(program, version), bound: b, first: uint16(len(reg.ops))}
	n.gss, n.other = n.first+uint16(len(own)), n.first+uint16(len(own))+1
	for i := range procs {
		number := n.other
		if i < len(own) && own[i].Name != "" {
			number = n.first + uint16(i)
		}
		n.procedures = append(n.procedures, number)
	}
	if f, ok := b.(Fixer); ok {
		n.fixed = make([]fixedCall, max(procs, leastFixed))
		for i := range n.fixed {
			a := Analysis{Reduce: true}
			if args, ok := f.Fixed(uint32(i), &a); ok {
				reg.complete(&a, oncrpc.ReplyHeader)
				a.Operation = n.other
				if i < len(n.procedures) {
					a.Operation = n.procedures[i]
				}
				n.fixed[i] = fixedCall{args, a}
			}
		}
	}
	reg.bindings = append(reg.bindings, n)
	for _, o := range append(own, Operation{Name: operationGSS}, Operation{Name: operationOther}) {
		o.Program, o.Version = program, version
		reg.ops = append(reg.ops, o)
	}
}

// Operation returns the number of the operation of a Call that is not analysed.
func (reg *Registry) Operation(c *oncrpc.Call) uint16 {
	return reg.lookup(c.Program, c.Version).operation(c, 0)
}

// operation returns the number of the operation of a Call, which may be a GSS control procedure. A binding
// whose procedures have operations of their own says so in own; 0 if it does not. b is nil for a program
// without a binding.
func (b *binding) operation(c *oncrpc.Call, own uint16) uint16 {
	switch {
	case b == nil:
		return 0
	case c.Protection == oncrpc.ProtectControl:
		return b.gss
	case own != 0:
		return b.first + own
	case c.Procedure < uint32(len(b.procedures)):
		return b.procedures[c.Procedure]
	}
	return b.other
}

// Lookup returns the binding of a program and version, or [Generic] when there is
// none.
func (reg *Registry) Lookup(program, version uint32) Binding {
	if b := reg.lookup(program, version); b != nil {
		return b.bound
	}
	return Generic
}

// lookup returns the binding of a program and version, or nil.
func (reg *Registry) lookup(program, version uint32) *binding {
	k := key(program, version)
	for i := range reg.bindings {
		if b := &reg.bindings[i]; b.key == k {
			return b
		}
	}
	return nil
}

func key(program, version uint32) uint64 { return uint64(program)<<32 | uint64(version) }

// Analyse fills a with the facts about c that decide how it travels, and returns the
// binding of c. It never fails and does not allocate. A Call that its binding cannot
// walk is carried whole, and the server answers it with an error.
func (reg *Registry) Analyse(c *oncrpc.Call, a *Analysis) Binding {
	n := reg.lookup(c.Program, c.Version)
	if n != nil && n.fixes(c) {
		if f := &n.fixed[c.Procedure]; f.args != nil && f.args.Fits(c.Message, c.Args) {
			*a = f.analysis
			return n.bound
		}
	}
	return reg.analyseBy(n, c, a)
}

// Fixed returns the layout of the arguments of Calls that have one Analysis, that of c, if they have the program,
// version, procedure and credential of c; nil for none.
func (reg *Registry) Fixed(c *oncrpc.Call) Layout {
	if n := reg.lookup(c.Program, c.Version); n != nil && n.fixes(c) {
		return n.fixed[c.Procedure].args
	}
	return nil
}

// fixes reports whether one Analysis may hold for all Calls with the header c, as far as their arguments have a layout.
func (b *binding) fixes(c *oncrpc.Call) bool {
	return c.Protection == oncrpc.ProtectNone && c.Flavor <= oncrpc.FlavorSys && c.Procedure < uint32(len(b.fixed))
}

// analyseBy does what Analyse does, by the arguments of c. n is its binding, or nil.
func (reg *Registry) analyseBy(n *binding, c *oncrpc.Call, a *Analysis) Binding {
	*a = Analysis{Reduce: c.Reducible()}
	b := Generic
	if n != nil {
		b = n.bound
	}
	reg.analyse(b, c, a)
	a.Operation = n.operation(c, a.Operation)
	if c.Protection == oncrpc.ProtectControl {
		return Generic
	}
	return b
}

// analyse does what Analyse does, but for the operation: of that it sets what b says.
func (reg *Registry) analyse(b Binding, c *oncrpc.Call, a *Analysis) {
	l := &reg.limits

	switch c.Protection {
	case oncrpc.ProtectNone, oncrpc.ProtectIntegrity:
		start, end, ok := c.Arguments()
		switch {
		case !ok:
		case c.Procedure == 0 && start == end:
			// "PINGPROC_NULL takes no arguments and returns no results [...] By
			// convention, procedure 0 of any RPC protocol should have the same
			// semantics". RFC 5531 Section 12.1.
			a.Known, a.Procedure = true, "NULL"
		default:
			b.Analyse(c, l, a)
		}
	case oncrpc.ProtectControl:
		reg.control(c, a)
		return
	}
	if !a.Known {
		*a = Analysis{
			Reduce: a.Reduce, Class: NonIdempotent, Changes: !keeps(b, c.Procedure), Procedure: a.Procedure, Session: a.Session,
			MaxReply: l.MaxReply, MaxReduced: l.MaxReply,
			Operation: a.Operation, Operations: a.Operations,
		}
		return
	}
	reg.complete(a, replyHeader(c))
}

// complete makes the bounds of results in a those of Replies, whose header has up to h octets.
func (reg *Registry) complete(a *Analysis, h uint32) {
	l := &reg.limits
	a.MaxReply = bound(h, a.MaxReply, l)
	if !a.Reduce {
		a.ArgPosition, a.ArgLength, a.ResultMax, a.Lower = 0, 0, 0, 0
	}
	if a.ResultMax == 0 {
		a.MaxReduced = a.MaxReply
	} else {
		a.MaxReduced = bound(h, a.MaxReduced, l)
	}
}

// keeps reports whether a procedure of b changes no file, whatever its arguments.
func keeps(b Binding, procedure uint32) bool {
	k, ok := b.(Keeper)
	return ok && k.Keeps(procedure)
}

// mismatch is the length behind the header of the longest Reply without results, in
// octets: PROG_MISMATCH names two versions.
const mismatch = 8

// bound adds the length of a Reply's header to the bound of its results.
func bound(header, results uint32, l *Limits) uint32 {
	return uint32(min(uint64(header)+uint64(max(results, mismatch)), uint64(l.MaxReply)))
}

// replyHeader bounds the octets before and around the results of a Call whose arguments
// can be read.
func replyHeader(c *oncrpc.Call) uint32 {
	switch {
	case c.Protection == oncrpc.ProtectIntegrity:
		// verf; databody<>: seq_num, results; checksum<>. RFC 2203 Section 5.3.3.2.
		return oncrpc.ReplyHeader + oncrpc.MaxAuth + 8 + 4 + oncrpc.MaxAuth
	case c.Flavor == oncrpc.FlavorGSS, c.Flavor == oncrpc.FlavorShort:
		return oncrpc.ReplyHeader + oncrpc.MaxAuth
	}
	// "The flavor value of the verifier received in the reply message from the
	// server may be "AUTH_NONE" or "AUTH_SHORT"", RFC 5531 Appendix A. No NFS
	// server in use sends AUTH_SHORT, so only a Call with an AUTH_SHORT credential,
	// above, gets room for one.
	return oncrpc.ReplyHeader
}

// control bounds the Reply to a GSS control procedure. The GSS protocol defines its results,
// not the procedure NULL.
func (reg *Registry) control(c *oncrpc.Call, a *Analysis) {
	var results uint32
	switch c.GSS.Procedure {
	case oncrpc.GSSDestroy, oncrpc.GSSBindChannel:
		// No results, but under integrity a checksum over them.
		results = 16 + oncrpc.MaxAuth
	default:
		// handle<>, gss_major, gss_minor, seq_window, gss_token<>: RFC 2203
		// Section 5.2.3.1. The lists of version 3 are shorter.
		results = 4 + 256 + 12 + 4 + reg.limits.Token
	}
	a.Class = NonIdempotent
	a.MaxReply = bound(oncrpc.ReplyHeader+oncrpc.MaxAuth, results, &reg.limits)
	a.MaxReduced = a.MaxReply
}
