package nlmtest

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The programs.
const (
	ProgramRPCBind = 100000
	ProgramNLM     = 100021
	ProgramNSM     = 100024
)

// Procedures of NLM, X/Open XNFS Chapter 10. The _MSG of TEST to GRANTED is 5 greater, and its _RES 10.
const (
	Test    = 1
	Lock    = 2
	Cancel  = 3
	Unlock  = 4
	Granted = 5
	Share   = 20
	Unshare = 21
	NMLock  = 22
	FreeAll = 23

	ToMsg = 5
	ToRes = 10
)

// SMNotify is the procedure of NSM that tells of a restart, X/Open XNFS Chapter 11.
const SMNotify = 6

// A Stat is the result of a procedure of NLM.
type Stat uint32

// The Stats.
const (
	StatGranted Stat = iota
	StatDenied
	StatNoLocks
	StatBlocked
	StatGrace
	StatDeadlock
)

// Args are the arguments of a procedure. Each procedure has some of them.
type Args struct {
	Cookie           []byte
	Block, Exclusive bool
	Caller           string
	FH, OH           []byte
	SVID             uint32
	Offset, Length   uint64
	Reclaim          bool
	State            uint32
	Mode, Access     uint32 // of SHARE
}

// Results are those of a procedure. Holder is set if TEST was denied.
type Results struct {
	Cookie []byte
	Stat   Stat
	Holder *Holder
}

// A Holder has the lock that TEST found.
type Holder struct {
	Exclusive      bool
	SVID           uint32
	OH             []byte
	Offset, Length uint64
}

func boolean(v bool) uint32 {
	if v {
		return 1
	}
	return 0
}

func appendRange(b []byte, version uint32, offset, length uint64) []byte {
	if version < 4 {
		return xdr.AppendWords(b, uint32(offset), uint32(length))
	}
	return xdr.AppendUint64(xdr.AppendUint64(b, offset), length)
}

// synchronous returns the procedure whose arguments a _MSG has.
func synchronous(procedure uint32) uint32 {
	if procedure > Granted && procedure <= Granted+ToMsg {
		return procedure - ToMsg
	}
	return procedure
}

// Append appends the arguments of a procedure.
func (a *Args) Append(b []byte, version, procedure uint32) []byte {
	procedure = synchronous(procedure)
	if procedure == FreeAll {
		return xdr.AppendUint32(xdr.AppendOpaque(b, []byte(a.Caller)), a.State)
	}
	b = xdr.AppendOpaque(b, a.Cookie)
	switch procedure {
	case Share, Unshare:
		for _, o := range [][]byte{[]byte(a.Caller), a.FH, a.OH} {
			b = xdr.AppendOpaque(b, o)
		}
		return xdr.AppendWords(b, a.Mode, a.Access, boolean(a.Reclaim))
	case Lock, Cancel, NMLock:
		b = xdr.AppendWords(b, boolean(a.Block), boolean(a.Exclusive))
	case Test, Granted:
		b = xdr.AppendUint32(b, boolean(a.Exclusive))
	}
	for _, o := range [][]byte{[]byte(a.Caller), a.FH, a.OH} {
		b = xdr.AppendOpaque(b, o)
	}
	b = appendRange(xdr.AppendUint32(b, a.SVID), version, a.Offset, a.Length)
	if procedure == Lock || procedure == NMLock {
		b = xdr.AppendWords(b, boolean(a.Reclaim), a.State)
	}
	return b
}

// cursor reads a message.
type cursor struct {
	xdr.Cursor
	b []byte
}

func newCursor(b []byte) *cursor { return &cursor{xdr.NewCursor(b, 0), b} }

func (c *cursor) opaque() []byte {
	at, n := c.Opaque()
	return c.b[at : at+n]
}

func (c *cursor) boolean() bool { return c.Uint32() != 0 }

func (c *cursor) hyper(version uint32) uint64 {
	if version < 4 {
		return uint64(c.Uint32())
	}
	return c.Uint64()
}

// ParseArgs reads the arguments of a procedure. ok is false if they are not exactly those.
func ParseArgs(b []byte, version, procedure uint32) (a Args, ok bool) {
	procedure = synchronous(procedure)
	c := newCursor(b)
	if procedure == FreeAll {
		a.Caller, a.State = string(c.opaque()), c.Uint32()
		return a, c.OK() && c.Len() == 0
	}
	a.Cookie = c.opaque()
	switch procedure {
	case Lock, Cancel, NMLock:
		a.Block, a.Exclusive = c.boolean(), c.boolean()
	case Test, Granted:
		a.Exclusive = c.boolean()
	}
	a.Caller, a.FH, a.OH = string(c.opaque()), c.opaque(), c.opaque()
	if procedure == Share || procedure == Unshare {
		a.Mode, a.Access, a.Reclaim = c.Uint32(), c.Uint32(), c.boolean()
		return a, c.OK() && c.Len() == 0
	}
	a.SVID = c.Uint32()
	a.Offset, a.Length = c.hyper(version), c.hyper(version)
	if procedure == Lock || procedure == NMLock {
		a.Reclaim, a.State = c.boolean(), c.Uint32()
	}
	return a, c.OK() && c.Len() == 0
}

// Append appends the results of a procedure, or the arguments of its _RES.
func (r *Results) Append(b []byte, version, procedure uint32) []byte {
	b = xdr.AppendUint32(xdr.AppendOpaque(b, r.Cookie), uint32(r.Stat))
	switch {
	case procedure == Share || procedure == Unshare:
		b = xdr.AppendUint32(b, 0) // sequence
	case procedure == Test && r.Stat == StatDenied:
		h := r.Holder
		b = xdr.AppendOpaque(xdr.AppendWords(b, boolean(h.Exclusive), h.SVID), h.OH)
		b = appendRange(b, version, h.Offset, h.Length)
	}
	return b
}

// ParseResults reads the results of a procedure, or the arguments of its _RES.
func ParseResults(b []byte, version, procedure uint32) (r Results, ok bool) {
	c := newCursor(b)
	r.Cookie, r.Stat = c.opaque(), Stat(c.Uint32())
	switch {
	case procedure == Share || procedure == Unshare:
		c.Uint32()
	case procedure == Test && r.Stat == StatDenied:
		r.Holder = &Holder{Exclusive: c.boolean(), SVID: c.Uint32(), OH: c.opaque()}
		r.Holder.Offset, r.Holder.Length = c.hyper(version), c.hyper(version)
	}
	return r, c.OK() && c.Len() == 0
}

// A Notice is the arguments of SM_NOTIFY.
type Notice struct {
	Name  string
	State uint32
}

// Append appends n.
func (n Notice) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendOpaque(b, []byte(n.Name)), n.State)
}

// ParseNotice reads the arguments of SM_NOTIFY.
func ParseNotice(b []byte) (n Notice, ok bool) {
	c := newCursor(b)
	n = Notice{string(c.opaque()), c.Uint32()}
	return n, c.OK() && c.Len() == 0
}
