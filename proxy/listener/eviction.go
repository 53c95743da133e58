package listener

import (
	"net/netip"

	"github.com/rs/zerolog"
)

// Making room.
//
// limits.connections and the descriptors of the process are for all clients together, and one
// address could have them all. So when they are used up and a client connects, the host with the
// most connections gives way to a host that has fewer, as weights have it: one of its connections
// is closed, and the newcomer is let in. A host gains nothing by opening more connections, and
// loses nothing while nobody else wants in.

// maxEvictions bounds the connections that are being closed for newcomers of one listener, and so
// how far it may exceed its limit.
const maxEvictions = 16

// makeRoom has a connection closed for another one from peer, if there is a host that has to give
// way. It reports whether that is so. Any goroutine.
func (l *Listener) makeRoom(peer netip.Addr) bool {
	if !l.Settings().MakesRoom() {
		return false
	}
	from, host, ok := l.yields(peer)
	if !ok {
		return false
	}
	from.evicted.Inc()
	from.crowded.Line(&from.Log, zerolog.WarnLevel, "client_closed").Str("reason", "evicted").
		Stringer("address", host).Stringer("newcomer", peer).
		Msg("no more connections are allowed; a connection of the address with the most is closed for a newcomer")
	e := &eviction{l: from, host: host}
	e.l.Loops[0].Post(e)
	return true
}

// yields returns the host that has to give way to a client from peer, and a listener where it has
// connections: l if l has as many connections as it may, and otherwise any, because the process
// has too many. ok is false if there is none.
func (l *Listener) yields(peer netip.Addr) (from *Listener, host netip.Addr, ok bool) {
	all := []*Listener{l}
	if most := l.Settings().Opts.MaxConnections; most <= 0 || l.ClientCount() < most {
		all = l.All.AllListeners()
	}
	largest := 0
	for _, x := range all {
		x.mu.Lock()
		h, yes := x.clients.Yields(peer, x.weight(peer.Unmap()))
		if n := x.clients.Count(h); yes && n > largest && x.evictions < maxEvictions {
			from, host, largest = x, h, n
		}
		x.mu.Unlock()
	}
	if from == nil {
		return nil, host, false
	}
	from.mu.Lock()
	from.evictions++
	from.mu.Unlock()
	return from, host, true
}

// An eviction closes one connection of a host: the newest that is idle, or the newest if none is.
// Only a client's own loop knows whether it is idle, so the eviction visits one loop after the
// other.
type eviction struct {
	l    *Listener
	host netip.Addr
	loop int // the loop where it runs
}

// Run looks for a connection of this loop to close. loop.Task.
func (e *eviction) Run() {
	l, last := e.l, e.loop+1 == len(e.l.Loops)
	var victim Client
	l.mu.Lock()
	for m := range l.clients.Newest(e.host) {
		c := clientAt(m)
		switch {
		case c.Gone() || c.Evicted():
			continue
		case c.LoopNumber() == e.loop && c.Idle():
			victim = c
		case last && victim == nil:
			victim = c
			continue // an idle one may follow
		default:
			continue
		}
		break
	}
	if victim != nil {
		victim.Evict()
	}
	if victim != nil || last {
		l.evictions--
	}
	l.mu.Unlock()
	if victim == nil && !last {
		e.loop++
		l.Loops[e.loop].Post(e)
	}
}
