package session

import (
	"bytes"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// LearnBounds notes the bounds on Replies of the session that a client at addr has created, if reply, the Reply to the
// CREATE_SESSION whose Analysis is a, says so.
func (t *Table) LearnBounds(reply [][]byte, a *ulb.Analysis, addr netip.Addr) {
	if id, l, ok := nfs.CreatedLimits(whole(reply), a); ok {
		t.learn(id, l, addr)
	}
}

// learn notes the bounds on Replies of session id, which a client at a has created.
func (t *Table) learn(id nfs.SessionID, l nfs.SessionLimits, a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.get(id, a).limits.Store(max(uint64(l.Response)<<32|uint64(l.Cached), sessionGone+1))
}

// find returns session id, or nil.
func (t *Table) find(id nfs.SessionID) *session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[id]
}

// Tighten lowers the bounds in a, the Analysis of the Call m, to those of session id in t, which m names.
func (r *Record) Tighten(t *Table, id nfs.SessionID, m []byte, a *ulb.Analysis) {
	s := r.session
	if s == nil || s.id != id || s.limits.Load() == sessionGone {
		s = t.find(id)
		r.session = s
	}
	if s == nil {
		return
	}
	if l := s.limits.Load(); l > sessionGone {
		nfs.SessionLimits{Response: uint32(l >> 32), Cached: uint32(l)}.Tighten(m, a)
	}
}

// mostWhole is the most octets of several parts that whole puts together.
const mostWhole = 64 << 10

// whole returns a Reply in one piece, or nil if it is longer than mostWhole and would have to be
// copied. It is for Replies that say something about sessions, which are short: a client that has a READ
// in such a COMPOUND is not to cause a copy of the data.
func whole(parts [][]byte) []byte {
	if len(parts) == 1 {
		return parts[0]
	}
	n := 0
	for _, b := range parts {
		n += len(b)
	}
	if n > mostWhole {
		return nil
	}
	return bytes.Join(parts, nil)
}
