package proxy

import (
	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/pool"
)

// Pinned connections of one host
//
// Each pinned connection costs the server a connection and the bridge memory, and has credits of its
// own. So hosts divide the places of pinned connections, as those of listeners (eviction.go), and the
// Calls on them (pool.Quota).

// A pinHost is a host that has pins.
type pinHost struct {
	n     int // pins
	quota *pool.QuotaHost
}

// add counts p, a pin of h. ps.mu is held.
func (ps *pins) add(p *pin, h *pinHost) {
	if h.n++; h.n == 1 {
		if ps.hosts == nil {
			ps.hosts = make(map[*host]*pinHost)
		}
		ps.hosts[p.host] = h
	}
	w := p.front.ledger.weight
	h.quota.SetWeight(w)
	p.place.Value = p
	ps.all.Add(&p.place, p.front.ledger.addr(), w)
}

// remove undoes add. ps.mu is held.
func (ps *pins) remove(p *pin) {
	h := ps.hosts[p.host]
	if h.n--; h.n == 0 {
		delete(ps.hosts, p.host)
	}
	ps.all.Remove(&p.place)
	if p.evicted {
		ps.evictions--
	}
}

// reweigh makes w the weight of the host of p.
func (p *pin) reweigh(w int) {
	ps := &p.u.pins
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if h := ps.hosts[p.host]; h != nil {
		h.quota.SetWeight(w)
	}
	ps.all.Reweigh(&p.place, w)
}

// makeRoom closes the connection of another client, so that f, which needs a pin, can have its place.
// The client is one of the host that has the most pins, divided by its weight. If that is no more
// than the host of f would have with another pin, makeRoom returns false. u.pins.mu is held.
func (u *upstream) makeRoom(f *front) bool {
	ps := &u.pins
	host, ok := ps.all.Yields(f.ledger.addr(), f.ledger.weight)
	if !ok || ps.evictions >= maxEvictions || !f.listener.settings().opts.MakeRoom {
		return false
	}
	var victim *pin // the newest that is idle, or the newest if none is
	for m := range ps.all.Newest(host) {
		p := m.Value
		if p.evicted || victim != nil && p.pool.Busy() {
			continue
		}
		if victim = p; !p.pool.Busy() {
			break
		}
	}
	if victim == nil {
		return false
	}
	victim.evicted = true
	ps.evictions++
	ps.makesRoom.Inc()
	ps.crowded.Line(&u.log, zerolog.WarnLevel, "client_closed").Str("reason", "evicted_pin").Stringer("address", host).Stringer("newcomer", f.ledger.addr()).
		Msg("no more pinned connections are allowed; a client of the address with the most is closed for a newcomer")
	victim.front.close(errEvicted)
	return true
}
