package nlm

import (
	"math"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Procedures of NLM. Those that end in _MSG are answered by a Call of the one that ends in _RES, five further on.
const (
	procTest       = 1
	procLock       = 2
	procCancel     = 3
	procUnlock     = 4
	procGranted    = 5
	procTestMsg    = 6
	procUnlockMsg  = 9
	procGrantedMsg = 10
	procGrantedRes = 15
	procShare      = 20
	procUnshare    = 21
	procNMLock     = 22
	procFreeAll    = 23

	toMsg = procTestMsg - procTest // from a procedure to its _MSG, and from that to its _RES
)

// Procedures of NSM.
const (
	procStat      = 1
	procMon       = 2
	procUnmon     = 3
	procUnmonAll  = 4
	procSimuCrash = 5
	procNotify    = 6
)

// A stat is an nlm_stats.
const (
	granted     = 0
	denied      = 1
	noLocks     = 2 // the lock manager has no room
	blocked     = 3 // GRANTED will follow
	gracePeriod = 4 // ask again later
)

// Bounds of arguments, in octets. A netobj has at most 1024.
const (
	maxCookie = 1024
	maxOwner  = 1024
	maxName   = 255
	maxHandle = 64 // of NFSv3
)

// A request is the arguments of a Call of NLM. It lends its octets from the Call.
//
//	TEST, GRANTED    cookie, exclusive, lock
//	LOCK, NM_LOCK    cookie, block, exclusive, lock, reclaim, state
//	CANCEL           cookie, block, exclusive, lock
//	UNLOCK           cookie, lock
//	SHARE, UNSHARE   cookie, name, handle, owner, mode, access, reclaim
//	lock             name, handle, owner, svid, start, length
//
// Version 4 has 64 bits for start and length, the others have 32.
type request struct {
	cookie           []byte
	block, exclusive uint32
	name, handle, oh []byte
	svid             uint32
	start, length    uint64
	reclaim, state   uint32
	mode, access     uint32
}

// walk goes through the arguments of a procedure and hands each to word, range or opaque.
func (r *request) walk(procedure uint32, word func(*uint32), extent func(*uint64), opaque func(*[]byte, int)) {
	opaque(&r.cookie, maxCookie)
	switch procedure {
	case procLock, procNMLock, procCancel:
		word(&r.block)
		word(&r.exclusive)
	case procTest, procGranted:
		word(&r.exclusive)
	}
	opaque(&r.name, maxName)
	opaque(&r.handle, maxHandle)
	opaque(&r.oh, maxOwner)
	switch procedure {
	case procShare, procUnshare:
		word(&r.mode)
		word(&r.access)
		word(&r.reclaim)
		return
	}
	word(&r.svid)
	extent(&r.start)
	extent(&r.length)
	switch procedure {
	case procLock, procNMLock:
		word(&r.reclaim)
		word(&r.state)
	}
}

// parse reads the arguments at position at of m.
func (r *request) parse(m []byte, at int, version, procedure uint32) bool {
	c := xdr.NewCursor(m, at)
	r.walk(procedure, func(v *uint32) { *v = c.Uint32() }, func(v *uint64) {
		if version < 4 {
			*v = uint64(c.Uint32())
		} else {
			*v = c.Uint64()
		}
	}, func(v *[]byte, most int) { *v = opaque(&c, m, most) })
	return c.OK()
}

// opaque consumes an opaque of at most so many octets.
func opaque(c *xdr.Cursor, m []byte, most int) []byte {
	pos, n := c.Opaque()
	if n > most {
		c.Fail()
		return nil
	}
	return m[pos : pos+n : pos+n]
}

// append encodes the arguments.
func (r *request) append(b []byte, version, procedure uint32) []byte {
	r.walk(procedure, func(v *uint32) { b = xdr.AppendUint32(b, *v) }, func(v *uint64) {
		if version < 4 {
			b = xdr.AppendUint32(b, uint32(*v))
		} else {
			b = xdr.AppendUint64(b, *v)
		}
	}, func(v *[]byte, _ int) { b = xdr.AppendOpaque(b, *v) })
	return b
}

// A result is what a procedure of NLM returns: cookie, stat, and for a TEST that is DENIED the holder, or for SHARE the
// sequence.
//
//	holder   exclusive, svid, owner, start, length
type result struct {
	stat      uint32
	exclusive uint32
	svid      uint32
	oh        []byte
	start     uint64
	length    uint64
	sequence  uint32
	ours      bool // the server has not answered
}

// shownOwner bounds the owner in an answer to TEST, so that answers over UDP are short.
const shownOwner = 64

// parse reads the results of a procedure at position at of m, except the cookie.
func (r *result) parse(m []byte, at int, version, procedure uint32) bool {
	c := xdr.NewCursor(m, at)
	c.Opaque()
	r.stat = c.Uint32()
	extent := func() uint64 {
		if version < 4 {
			return uint64(c.Uint32())
		}
		return c.Uint64()
	}
	switch {
	case procedure == procTest && r.stat == denied:
		r.exclusive, r.svid = c.Uint32(), c.Uint32()
		r.oh = opaque(&c, m, maxOwner)
		r.oh = r.oh[:min(len(r.oh), shownOwner)]
		r.start, r.length = extent(), extent()
	case procedure == procShare || procedure == procUnshare:
		r.sequence = c.Uint32()
	}
	return c.OK()
}

// append encodes the results of a procedure.
func (r *result) append(b, cookie []byte, version, procedure uint32) []byte {
	b = xdr.AppendUint32(xdr.AppendOpaque(b, cookie), r.stat)
	switch {
	case procedure == procTest && r.stat == denied:
		b = xdr.AppendOpaque(xdr.AppendWords(b, r.exclusive, r.svid), r.oh)
		if version < 4 {
			b = xdr.AppendWords(b, uint32(r.start), uint32(r.length))
		} else {
			b = xdr.AppendUint64(xdr.AppendUint64(b, r.start), r.length)
		}
	case procedure == procShare || procedure == procUnshare:
		b = xdr.AppendUint32(b, r.sequence)
	}
	return b
}

// A span is a range of octets of a file. The end is behind the last one; endless is the end of the file.
type span struct{ Start, End uint64 }

const endless = math.MaxUint64

var everything = span{0, endless}

// span returns the range of r. A length of 0 goes to the end of the file.
func (r *request) span() span {
	if r.length == 0 || r.start+r.length < r.start {
		return span{r.start, endless}
	}
	return span{r.start, r.start + r.length}
}

// without returns the parts of a that are in none of spans, which are sorted and apart.
func without(a span, spans []span) (parts []span) {
	for _, x := range spans {
		if x.End <= a.Start || x.Start >= a.End {
			continue
		}
		if x.Start > a.Start {
			parts = append(parts, span{a.Start, x.Start})
		}
		a.Start = x.End
		if a.Start >= a.End {
			return parts
		}
	}
	return append(parts, a)
}

// with returns spans and a, sorted and apart.
func with(spans []span, a span) []span {
	var all []span
	for _, x := range spans {
		switch {
		case x.End < a.Start:
			all = append(all, x)
		case x.Start > a.End: // x and those after it follow a
			all = append(all, a)
			a = x
		default:
			a = span{min(a.Start, x.Start), max(a.End, x.End)}
		}
	}
	return append(all, a)
}

// minus returns what remains of spans without a.
func minus(spans []span, a span) (rest []span) {
	for _, x := range spans {
		if x.End > a.Start && x.Start < a.End {
			rest = append(rest, without(x, []span{a})...)
		} else {
			rest = append(rest, x)
		}
	}
	return rest
}
