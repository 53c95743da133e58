package session

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/pool/quota"
)

// TestReweigh: when the weight of a client with a pinned lane changes, its host gives way by the new one.
func TestReweigh(t *testing.T) {
	x := newTableCase(t)
	ls := &Lanes{Table: x.t}
	h := &pinnedHost{quota: quota.New(1).Host()}
	var all []*Client
	for range 4 {
		r := x.client(1)
		r.lane = &Lane{lanes: ls, opts: laneOptions{only: r}}
		ls.pinned.add(r.lane, h, 8)
		all = append(all, r)
	}
	other := netip.MustParseAddr("198.51.100.1")
	if _, ok := ls.pinned.all.Yields(other, 1); ok {
		t.Error("a host with weight 8 gives way with 4 connections")
	}
	for _, r := range all {
		r.Reweigh(1)
	}
	if _, ok := ls.pinned.all.Yields(other, 1); !ok {
		t.Error("a host whose weight is 1 now does not give way with 4 connections")
	}
}
