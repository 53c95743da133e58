package proxy

// SetMaxSessions bounds the session tables of all upstreams.
func (p *Proxy) SetMaxSessions(n int) {
	for _, u := range p.allUpstreams() {
		u.table.mu.Lock()
		u.table.most = n
		u.table.mu.Unlock()
	}
}
