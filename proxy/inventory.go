package proxy

import "slices"

// currentListeners are those that listen. The slice is not to be changed.
func (p *Proxy) currentListeners() []*listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listeners
}

// allListeners are also those that have been taken away and have clients.
func (p *Proxy) allListeners() []*listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.listeners, p.leaving)
}

// allUpstreams are those that Calls may go to, by name. The map is not to be changed.
func (p *Proxy) allUpstreams() map[string]*upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstreams
}

// sum adds up what of says of all listeners that have, or had, a name.
func (p *Proxy) sum(name string, of func(*listener) int) (n int) {
	for _, l := range p.allListeners() {
		if l.name == name {
			n += of(l)
		}
	}
	return n
}

// removed reports that retire has ended u.
func (p *Proxy) removed(u *upstream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, going := p.retired[u]
	return !going && p.upstreams[u.name] != u
}
