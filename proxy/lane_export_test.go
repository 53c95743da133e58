package proxy

// LanesWaiting returns how many lanes of all upstreams wait for a server that does not answer.
func (p *Proxy) LanesWaiting() (n int) {
	for _, u := range p.allUpstreams() {
		n += u.Lanes.Waiting()
	}
	return n
}
