package rpcbind

import (
	"math"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// procedures is RPCBSTAT_HIGHPROC of RFC 1833 Section 2.1: the number of procedures of
// version 4, with NULL.
const procedures = 13

// maxStrangers bounds the counted lookups of services that do not exist. The client
// chooses their numbers, and must not be able to fill the memory.
const maxStrangers = 32

// A lookup is the program and netid in a question.
type lookup struct {
	Program
	netid netid
}

// counts count the answers to one lookup.
type counts struct{ success, failure uint32 }

// versionStat is an rpcb_stat. It has neither setinfo nor rmtinfo, because SET and CALLIT
// always fail.
type versionStat struct {
	calls     [procedures]uint32
	order     []lookup // keys of lookups, in the order of their first use
	lookups   map[lookup]*counts
	strangers int // lookups of services that do not exist
}

// statistics are the results of GETSTAT since the start of the Server: one versionStat for
// each of versions 2, 3 and 4.
type statistics struct {
	mu       sync.Mutex // a leaf
	versions [version4 - version2 + 1]versionStat
}

// expect adds the lookups of t, so that they are counted without regard to maxStrangers.
func (s *statistics) expect(t table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.versions {
		for _, e := range t {
			s.versions[i].entry(lookup{e.Program, e.netid})
		}
	}
}

func (v *versionStat) entry(l lookup) *counts {
	if c := v.lookups[l]; c != nil {
		return c
	}
	if v.lookups == nil {
		v.lookups = make(map[lookup]*counts)
	}
	c := new(counts)
	v.lookups[l] = c
	v.order = append(v.order, l)
	return c
}

// called counts a call of procedure proc of rpcbind version v.
func (s *statistics) called(v, proc uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bump(&s.versions[v-version2].calls[proc])
}

// looked counts the answer to a lookup of version v.
func (s *statistics) looked(v uint32, l lookup, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &s.versions[v-version2]
	c := x.lookups[l]
	if c == nil {
		if x.strangers == maxStrangers {
			return
		}
		x.strangers++
		c = x.entry(l)
	}
	if found {
		bump(&c.success)
	} else {
		bump(&c.failure)
	}
}

// bump increments n up to the largest XDR int.
func bump(n *uint32) {
	if *n < math.MaxInt32 {
		*n++
	}
}

// append encodes an rpcb_stat_byvers. RFC 1833 Section 2.1:
//
//	3 * { info[13], setinfo, unsetinfo, *(1, prog, vers, success, failure, netid), 0, 0 }
//
// It leaves out lookups that no client has made.
func (s *statistics) append(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.versions {
		v := &s.versions[i]
		for _, n := range v.calls {
			b = xdr.AppendUint32(b, n)
		}
		b = xdr.AppendUint32(b, 0) // setinfo
		b = xdr.AppendUint32(b, 0) // unsetinfo
		for _, l := range v.order {
			c := v.lookups[l]
			if *c == (counts{}) {
				continue
			}
			for _, n := range []uint32{1, l.Number, l.Version, c.success, c.failure} {
				b = xdr.AppendUint32(b, n)
			}
			b = xdr.AppendOpaque(b, []byte(l.netid.String()))
		}
		b = xdr.AppendUint32(b, 0) // no more addrinfo
		b = xdr.AppendUint32(b, 0) // no rmtinfo
	}
	return b
}
