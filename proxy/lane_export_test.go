package proxy

// LanesWaiting returns how many lanes of all upstreams wait for a server that does not answer.
func (p *Proxy) LanesWaiting() (n int) {
	for _, u := range p.allUpstreams() {
		u.lanes.mu.Lock()
		for _, l := range u.lanes.all {
			if l.waits() {
				n++
			}
		}
		u.lanes.mu.Unlock()
	}
	return n
}
