package session

import (
	"net/netip"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/pool"
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
	if _, ok := ls.pinned.staying.Yields(other, 1); ok {
		t.Error("a host with weight 8 gives way with 4 connections")
	}
	for _, r := range all {
		r.Reweigh(1)
	}
	if _, ok := ls.pinned.staying.Yields(other, 1); !ok {
		t.Error("a host whose weight is 1 now does not give way with 4 connections")
	}
}

// TestEvictionsUnderWay: a host whose clients are being closed for another host yields no more of them than the other host's
// share, however long they take to close.
func TestEvictionsUnderWay(t *testing.T) {
	x := newTableCase(t)
	log := zerolog.Nop()
	ls := &Lanes{Table: x.t}
	ls.o.Log = &log
	ps := &ls.pinned
	pin := func(host byte) *Lane {
		r := x.client(host)
		r.host = crowd.HostOf(r.o.Addr)
		r.lane = &Lane{lanes: ls, opts: laneOptions{only: r}, pool: new(pool.Pool)}
		h := ps.hosts[r.host]
		if h == nil {
			h = &pinnedHost{quota: quota.New(1).Host()}
		}
		ps.add(r.lane, h, 1)
		return r.lane
	}
	var first []*Lane
	for range 6 {
		first = append(first, pin(1))
	}
	got := 0
	for range 5 {
		if ls.makeRoom(x.client(2), 1) {
			pin(2)
			got++
		}
	}
	if got != 3 || ls.Pinned() != 9 {
		t.Errorf("another host got %d of 6 places while %d are there, want 3 and 9", got, ls.Pinned())
	}
	for _, l := range first {
		ps.remove(l)
	}
	if n := len(ps.hosts); ls.Pinned() != 3 || n != 1 {
		t.Errorf("%d lanes of %d hosts stay, want 3 of 1", ls.Pinned(), n)
	}
	if ls.makeRoom(x.client(2), 1) {
		t.Error("a host gives way to itself")
	}
}
