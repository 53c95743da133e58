package proxy

// SetMaxSessions bounds the session tables of all upstreams.
func (p *Proxy) SetMaxSessions(n int) {
	for _, u := range p.allUpstreams() {
		u.Lanes.Table.SetMost(n)
	}
}
