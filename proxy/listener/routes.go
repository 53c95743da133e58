package listener

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// A target is where a route sends a program, or some of its versions.
type target struct {
	versions  []uint32 // empty: all
	upstream  *upstream.Upstream
	low, high uint32 // the lowest and highest of versions, for PROG_MISMATCH
}

// routes finds the upstream for a program and version. It is constant.
type routes struct {
	programs map[uint32][]target
	other    *upstream.Upstream // for programs without a target; nil: they are refused
}

// Only returns the upstream for all programs. It reports false if a program has one of its own.
func (r *routes) Only() (u *upstream.Upstream, ok bool) { return r.other, len(r.programs) == 0 }

// Find returns the upstream for a Call, or nil. When it returns nil, mismatch says that only
// the version is unknown, and low and high are the versions to tell the client.
func (r *routes) Find(program, version uint32) (u *upstream.Upstream, mismatch bool, low, high uint32) {
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
func (r *routes) all() []*upstream.Upstream {
	var us []*upstream.Upstream
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
