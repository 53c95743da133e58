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
	pool.Stats     // of the shared connections
	Pinned     int // pinned connections
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
		st.Upstreams = append(st.Upstreams, UpstreamStatus{u.stats(), u.pins.count()})
	}
	return st
}

func (p *Proxy) sortedUpstreams() []*upstream {
	return slices.SortedFunc(maps.Values(p.allUpstreams()), func(a, b *upstream) int {
		return strings.Compare(a.name, b.name)
	})
}
