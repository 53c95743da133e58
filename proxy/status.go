package proxy

import (
	"maps"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A Status is the state of a Proxy at one moment.
type Status struct {
	Draining  bool
	Listeners []ListenerStatus
	Upstreams []UpstreamStatus
	Memory    regmem.Stats
}

// An UpstreamStatus is the state of an upstream at one moment.
type UpstreamStatus struct {
	pool.Stats              // of the connections that clients share, lanes included; Connections has the others
	Lanes      []LaneStatus // that have been used
	Pinned     int          // pinned connections
	Sessions   int          // of NFSv4.1 clients, whose callbacks the bridge can bring to them
}

// Total is how many connections that clients share there may be now.
func (s *UpstreamStatus) Total() int { return len(s.Connections) + len(s.Lanes) }

// A LaneStatus is the state of one lane at one moment.
type LaneStatus struct {
	pool.SeatStats
	Clients int // connections of clients that are assigned to it
}

// A ListenerStatus is the state of a listener at one moment.
type ListenerStatus struct {
	Name, Address, Transport string
	Clients                  int
}

// Status returns the state of the Proxy.
func (p *Proxy) Status() Status {
	st := Status{Memory: p.arena.Stats()}
	p.mu.Lock()
	st.Draining = p.draining
	p.mu.Unlock()
	for _, l := range p.currentListeners() {
		transport := "tcp"
		if l.isRDMA {
			transport = "rdma"
		}
		st.Listeners = append(st.Listeners, ListenerStatus{l.name, l.addr(), transport, l.clientCount()})
	}
	for _, u := range p.sortedUpstreams() {
		us := UpstreamStatus{Pinned: u.pins.count(), Sessions: u.table.count()}
		us.Stats, us.Lanes = u.stats()
		st.Upstreams = append(st.Upstreams, us)
	}
	return st
}

func (p *Proxy) sortedUpstreams() []*upstream {
	return slices.SortedFunc(maps.Values(p.allUpstreams()), func(a, b *upstream) int {
		return strings.Compare(a.name, b.name)
	})
}
