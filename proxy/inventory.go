package proxy

import "slices"

// currentListeners are the listeners that listen. The caller must not change the slice.
func (p *Proxy) currentListeners() []*listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listeners
}

// allListeners are the current listeners, and those that Reconfigure removed and that still
// have clients.
func (p *Proxy) allListeners() []*listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.listeners, p.leaving)
}

// allUpstreams are the upstreams that Calls may go to, by name. The caller must not change
// the map.
func (p *Proxy) allUpstreams() map[string]*upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstreams
}

// sum adds up of(l) over all listeners with the name, removed ones with clients included.
func (p *Proxy) sum(name string, of func(*listener) int) (n int) {
	for _, l := range p.allListeners() {
		if l.name == name {
			n += of(l)
		}
	}
	return n
}

// removed reports whether Reconfigure removed u and its last Call is settled.
func (p *Proxy) removed(u *upstream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, going := p.retired[u]
	return !going && p.upstreams[u.name] != u
}
