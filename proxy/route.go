package proxy

import "slices"

// A target is what one program is routed to.
type target struct {
	versions  []uint32 // empty: all
	upstream  *upstream
	low, high uint32 // of versions, for PROG_MISMATCH
}

// routes decides by program and version. Constant.
type routes struct {
	programs map[uint32][]target
	other    *upstream // nil: refuse
}

// find returns the upstream for a Call. When there is none, mismatch says that
// the program is known but not in this version, and low and high are what to
// tell the client.
func (r *routes) find(program, version uint32) (u *upstream, mismatch bool, low, high uint32) {
	targets := r.programs[program]
	for i := range targets {
		t := &targets[i]
		if len(t.versions) == 0 || slices.Contains(t.versions, version) {
			return t.upstream, false, 0, 0
		}
	}
	if r.other != nil {
		return r.other, false, 0, 0
	}
	if len(targets) == 0 {
		return nil, false, 0, 0
	}
	low, high = targets[0].low, targets[0].high
	for _, t := range targets[1:] {
		low, high = min(low, t.low), max(high, t.high)
	}
	return nil, true, low, high
}

// all returns every upstream that a Call may go to.
func (r *routes) all() []*upstream {
	var us []*upstream
	if r.other != nil {
		us = append(us, r.other)
	}
	for _, ts := range r.programs {
		for _, t := range ts {
			if !slices.Contains(us, t.upstream) {
				us = append(us, t.upstream)
			}
		}
	}
	return us
}
