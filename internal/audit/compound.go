package audit

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Numbers of operations of NFSv4: RFC 8881, RFC 7862 and RFC 8276.
const (
	opCreate    = 6
	opLink      = 11
	opOpen      = 18
	opOpenAttr  = 19
	opRemove    = 28
	opRename    = 29
	opSetAttr   = 34
	opWrite     = 38
	opCopy      = 60
	opWriteSame = 70
	opClone     = 71
	opSetXAttr  = 73
	opDelXAttr  = 75
)

// changes4 are the operations of NFSv4 that change something, whatever their arguments are. OPEN and OPENATTR do so if
// they create.
var changes4 = [...]bool{
	opCreate: true, opLink: true, opRemove: true, opRename: true, opSetAttr: true, opWrite: true, 49 /* LAYOUTCOMMIT */ : true,
	59 /* ALLOCATE */ : true, opCopy: true, 62 /* DEALLOCATE */ : true, opWriteSame: true, opClone: true, opSetXAttr: true, opDelXAttr: true,
}

// class returns what an operation of NFSv4 is whose arguments are at pos.
func class(number uint32, m []byte, pos int) (k Classes) {
	x := xdr.NewCursor(m, pos)
	switch {
	case number == opOpen:
		k = Opens
		if creates, _ := nfs.OpenName(&x); creates {
			k |= Changes
		}
	case number == opOpenAttr && x.Uint32() != 0, number < uint32(len(changes4)) && changes4[number]:
		k = Changes
	}
	return k
}

// compound fills in the operations of a COMPOUND that are of interest, or all if denials are chosen.
func (c *call) compound(h *oncrpc.Call, chosen Classes, start, end int) {
	m := h.Message[:end]
	x := xdr.NewCursor(m, start)
	x.Opaque()
	x.Skip(4)
	count, read := x.Uint32(), uint32(0)
	wanted := chosen&Denials != 0
	nfs.EachOperation(m, start, func(number uint32, pos int) bool {
		wanted = wanted || class(number, m, pos)&chosen != 0
		read++
		return true
	})
	if !wanted && read == count {
		return
	}
	t := tracker{}
	nfs.EachOperation(m, start, func(number uint32, pos int) bool {
		o, k := t.operation(number, m, pos)
		if k&chosen != 0 || chosen&Denials != 0 {
			c.ops = append(c.ops, o)
		}
		t.index++
		return true
	})
	if read < count {
		c.ops = append(c.ops, operation{index: t.index, name: "operations that cannot be read", class: Changes, unreadable: true})
	}
}

// A tracker follows the current and the saved filehandle through a COMPOUND.
type tracker struct {
	index          uint32 // of the operation in its COMPOUND
	current, saved place
}

// enter makes name in the current filehandle the current one.
func (t *tracker) enter(name string) {
	if len(t.current.below) < maxText {
		t.current.below += "/" + name
	}
}

// operation returns the operation whose arguments are at pos, and does to the filehandles what it does.
func (t *tracker) operation(number uint32, m []byte, pos int) (o operation, k Classes) {
	x := xdr.NewCursor(m, pos)
	k = class(number, m, pos)
	o = operation{index: t.index, name: nfs.OperationName(number), class: k, at: t.current}
	switch move, octets := nfs.MoveOf(number, m, pos); move {
	case nfs.Puts:
		t.current = place{handle: cut(octets, maxHandle)}
	case nfs.PutsRoot:
		t.current = place{rooted: true}
	case nfs.Saves:
		t.saved = t.current
	case nfs.Restores:
		t.current = t.saved
	case nfs.Enters:
		o.at.name, o.at.named = cut(octets, maxText), true
		t.enter(o.at.name)
	case nfs.GoesUp:
		t.enter("..")
	case nfs.EntersAttrs:
		t.enter("(named attributes)")
	case nfs.Stays:
	}
	switch number {
	case opCreate:
		if x.Uint32() == 5 { // NF4LNK
			o.target = opaque(m, &x, maxText)
		}
	case opRemove:
		o.at.entry(m, &x)
	case opSetXAttr:
		x.Skip(4)
		o.attribute = opaque(m, &x, maxText)
	case opDelXAttr:
		o.attribute = opaque(m, &x, maxText)
	case opLink:
		o.at, o.to = t.saved, t.current
		o.to.entry(m, &x)
	case opRename:
		o.at, o.to = t.saved, t.current
		o.at.entry(m, &x)
		o.to.entry(m, &x)
	case opCopy, opClone:
		o.at, o.to = t.saved, t.current
	case opWrite:
		x.Skip(28)
		o.octets, o.hasOctets = uint64(x.Uint32()), true
	}
	return o, k
}

// compoundResults fills in the statuses of operations. Those that the server has not come to have none.
func (c *call) compoundResults(m []byte, start int) {
	if start > len(m) {
		return
	}
	x := xdr.NewCursor(m, start)
	overall, index, next := x.Uint32(), uint32(0), 0
	denied := false
	nfs.EachResult(m, start, func(_, status uint32, pos int) bool {
		denied = denied || denial(status)
		for next < len(c.ops) && c.ops[next].index < index {
			next++
		}
		if next < len(c.ops) && (c.ops[next].index == index || c.ops[next].unreadable) {
			o := &c.ops[next]
			o.status, o.answered = status, true
			if r := xdr.NewCursor(m, pos); o.hasOctets && status == 0 {
				if n := r.Uint32(); r.OK() {
					o.octets = uint64(n)
				}
			}
		}
		index++
		return true
	})
	// The bridge may deny a COMPOUND without a result.
	if x.OK() && denial(overall) && !denied && len(c.ops) > 0 {
		for i := range c.ops {
			if !c.ops[i].answered {
				c.ops[i].status, c.ops[i].answered = overall, true
				break
			}
		}
	}
}
