package nfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// errResults is wrapped when the results of a Reply cannot be walked to their
// end.
var errResults = errors.New("results are malformed")

// Short names of the classes, so that a table row fits on a line.
const (
	ro  = ulb.ReadOnly
	idm = ulb.Idempotent
	non = ulb.NonIdempotent
)

// unbounded marks the results of a procedure that returns a list of any length.
const unbounded = ulb.Unbounded

// A sizer bounds the results of one Call by its arguments. It returns the octets of
// fixed parts, and the data octets of the DDP-eligible item that follows them, without
// roundup. m[start:end] are the arguments. Analyse has walked them to their exact end, so
// a sizer indexes them unchecked. The caller clamps results that no Reply could hold.
type sizer func(m []byte, start, end int, l *ulb.Limits) (fixed, data uint32)

// A procedure is a row of a program's table.
type procedure struct {
	name    string
	class   ulb.Class
	args    ulb.Layout
	results uint32 // the most octets of results, when size is nil
	size    sizer
	item    ulb.Layout // the results, of a procedure with an eligible one
	offer   offer
	guess   bool
	status  ulb.StatusKind

	// What the procedure does to files: ulb.Analysis.Changes.
	keeps   bool
	keepsIf func(m []byte, start int) bool
	failure uint32 // octets of zero behind the status of an error

	asks, says []number   // as in row
	saying     ulb.Layout // the results, of a procedure whose results have numbers
}

// An offer is the eligible item of a procedure that is worth a chunk. The text of
// a symbolic link is not: it is short, no Call says how short, and the Linux
// server returns it wrongly for an NFSv4 READLINK.
type offer uint8

const (
	offerNothing offer = iota
	offerArgument
	offerResult
)

// A row is a procedure before its layouts are compiled.
type row struct {
	number  uint32
	name    string
	class   ulb.Class
	args    string
	results uint32
	size    sizer
	item    string
	offer   offer
	guess   bool // nothing bounds the results: ulb.Analysis.Guess

	// keeps is set for a procedure that changes no file although its class is not ReadOnly. keepsIf
	// reports whether a Call with the arguments at start changes none.
	keeps   bool
	keepsIf func(m []byte, start int) bool

	// failure is how many octets follow the status of an error, all of which may be zero: optional
	// attributes that are absent.
	failure uint32

	// asks are the numbers in arguments that must not exceed what the path carries, and says those in results,
	// whose layout is saying. A row with asks has a size.
	asks, says []number
	saying     string
}

// A program is the table of one program and version, by procedure number. It
// implements ulb.Binding. A procedure without a name does not exist.
type program []procedure

// compileStatus does what compile does, for a program whose results have a status of that kind, apart from
// those of the procedures in void.
func compileStatus(kind ulb.StatusKind, void []string, rows ...row) *program {
	p := compile(rows...)
	all := *p
	for i := range all {
		if !slices.Contains(void, all[i].name) {
			all[i].status = kind
		}
	}
	return p
}

// Operations implements ulb.Operator.
func (p *program) Operations() (all []ulb.Operation, procedures int) {
	all = make([]ulb.Operation, max(1, len(*p)))
	for i, pr := range *p {
		all[i] = ulb.Operation{Name: pr.name, Status: pr.status}
	}
	return all, len(all)
}

// compile turns rows into a program. Procedure 0 needs no row: the Registry analyses
// NULL.
func compile(rows ...row) *program {
	var p program
	for _, r := range rows {
		for uint32(len(p)) <= r.number {
			p = append(p, procedure{})
		}
		if p[r.number].name != "" {
			panic("BUG: nfs: two rows for " + r.name)
		}
		pr := procedure{
			name: r.name, class: r.class, args: ulb.Compile(r.args),
			results: r.results, size: r.size, offer: r.offer, guess: r.guess,
			keeps: r.keeps || r.class == ro, keepsIf: r.keepsIf, failure: r.failure,
			asks: r.asks, says: r.says, saying: ulb.Compile(r.saying),
		}
		if r.item != "" {
			pr.item = ulb.Compile(r.item)
		}
		p[r.number] = pr
	}
	return &p
}

// Keeps implements ulb.Keeper. Procedure 0 is NULL.
func (p *program) Keeps(procedure uint32) bool {
	pr := p.procedure(procedure)
	return procedure == 0 || pr != nil && pr.keeps
}

func (p *program) procedure(n uint32) *procedure {
	if n >= uint32(len(*p)) || (*p)[n].name == "" {
		return nil
	}
	return &(*p)[n]
}

// Analyse implements ulb.Binding.
func (p *program) Analyse(c *oncrpc.Call, l *ulb.Limits, a *ulb.Analysis) {
	pr := p.procedure(c.Procedure)
	if pr == nil {
		return
	}
	a.Procedure = pr.name
	start, end, ok := c.Arguments()
	if !ok {
		return
	}
	var w ulb.Walk
	w.Reset(c.Message[:end], start) // not a copy of a Cursor that was just made: the copy would wait for earlier stores
	pr.args.Walk(&w)
	if !w.OK() || w.Len() != 0 {
		return
	}
	pr.fix(a)
	a.Changes = a.Changes && (pr.keepsIf == nil || !pr.keepsIf(c.Message, start))
	if pr.size != nil {
		fixed, data := pr.size(c.Message, start, end, l)
		a.MaxReduced = fixed
		a.MaxReply = fixed + (data+3)&^3
		if pr.offer == offerResult {
			a.ResultMax = data
		}
		if excessive(pr.asks, c.Message, start, end, l) {
			a.Lower = ulb.Arguments
		}
	}
	if pr.offer == offerArgument && w.Length > 0 {
		a.ArgPosition, a.ArgLength = uint32(w.Item), uint32(w.Length)
	}
}

// fix fills a as far as it does not depend on the arguments.
func (pr *procedure) fix(a *ulb.Analysis) {
	a.Known, a.Procedure = true, pr.name
	a.Class, a.Guess, a.Changes = pr.class, pr.guess, !pr.keeps
	if pr.size == nil {
		a.MaxReply, a.MaxReduced = pr.results, pr.results
		if pr.says != nil {
			a.Lower = ulb.Results
		}
	}
}

// Fixed implements ulb.Fixer.
func (p *program) Fixed(procedure uint32, a *ulb.Analysis) (args ulb.Layout, ok bool) {
	pr := p.procedure(procedure)
	if pr == nil || pr.size != nil || pr.keepsIf != nil || pr.offer == offerArgument {
		return nil, false
	}
	pr.fix(a)
	return pr.args, pr.args != nil
}

// ResultItem implements ulb.Binding. In versions 2 and 3 the item is the last of the
// results.
func (p *program) ResultItem(proc uint32, m []byte, results int, reduced bool) (pos, length uint32, ok bool, err error) {
	pr := p.procedure(proc)
	if pr == nil || pr.item == nil {
		return 0, 0, false, nil
	}
	w := walkResults(m, results, reduced)
	pr.item.Walk(&w)
	if err := endResults(&w, m, pr.name); err != nil {
		return 0, 0, false, err
	}
	return uint32(w.Item), uint32(w.Length), w.Items > 0, nil
}

// ResultItems implements ulb.Binding.
func (p *program) ResultItems(proc uint32, m []byte, results int, items []ulb.Splice) (n int, err error) {
	pr := p.procedure(proc)
	if pr == nil || pr.item == nil {
		return 0, nil
	}
	w := walkResults(m, results, false)
	w.Found = items
	pr.item.Walk(&w)
	return min(w.Items, len(items)), endResults(&w, m, pr.name)
}

// walkResults returns a Walk at the start of the results of the Reply m.
func walkResults(m []byte, results int, reduced bool) ulb.Walk {
	w := ulb.Walk{Cursor: xdr.NewCursor(m, results), Absent: reduced}
	if reduced {
		w.Roundup = ulb.Left(m)
	}
	return w
}

// endResults checks the results that w has walked. It returns an error when they do not
// end at the end of the Reply, or when the octets that a Responder left in place of an
// item are not roundup.
func endResults(w *ulb.Walk, m []byte, name string) error {
	if !w.OK() {
		return fmt.Errorf("ulb/nfs: %s: at octet %d: %w", name, w.Pos(), errResults)
	}
	if left := w.Len(); left != 0 {
		return fmt.Errorf("ulb/nfs: %s: %d octets behind the results: %w", name, left, errResults)
	}
	if w.Items == 0 {
		return nil
	}
	for _, v := range m[w.Item : w.Item+w.Roundup] {
		if v != 0 {
			return fmt.Errorf("ulb/nfs: %s: no roundup at octet %d: %w", name, w.Item, errResults)
		}
	}
	return nil
}

// ArgItem implements ulb.Binding.
func (p *program) ArgItem(c *oncrpc.Call, pos uint32) (length uint32, ok bool) {
	pr := p.procedure(c.Procedure)
	if pr == nil || !c.Reducible() || pos == 0 || uint64(pos) > uint64(len(c.Message)) {
		return 0, false
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(c.Message, c.Args), Absent: true, Position: int(pos)}
	pr.args.Walk(&w)
	if !w.OK() || w.Len() != 0 || w.Items == 0 {
		return 0, false
	}
	return uint32(w.Length), true
}

// ArgItems implements ulb.Binding.
func (p *program) ArgItems(c *oncrpc.Call, positions []uint32) bool {
	pr := p.procedure(c.Procedure)
	if pr == nil || !c.Reducible() {
		return false
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(c.Message, c.Args), Wanted: positions}
	pr.args.Walk(&w)
	return w.OK() && w.Len() == 0 && len(w.Wanted) == 0
}

// be returns the unit at o. A walk must have passed it.
func be(m []byte, o int) uint32 { return binary.BigEndian.Uint32(m[o:]) }

// after returns the position behind the opaque at o.
func after(m []byte, o int) int { return o + 4 + xdr.Roundup(int(be(m, o))) }

// count rounds up the octets of directory entries that a client asks for, and clamps them
// so that a caller can add to them.
func count(n uint32) uint32 { return (min(n, 1<<30) + 3) &^ 3 }

// A NamedProcedure is a procedure of a program that has a name, such as MNT.
type NamedProcedure struct{ Program, Version, Number uint32 }

// Procedures returns the procedures of that name of all programs. The operations of NFSv4 are not among
// them, because they have no procedures of their own.
func Procedures(name string) (all []NamedProcedure) {
	for _, b := range bindings {
		switch p := b.Binding.(type) {
		case compound:
			if name == "COMPOUND" {
				all = append(all, NamedProcedure{b.Program, b.Version, compoundProc})
			}
		case *program:
			for i, pr := range *p {
				if pr.name == name && name != "" {
					all = append(all, NamedProcedure{b.Program, b.Version, uint32(i)})
				}
			}
		}
	}
	return all
}
