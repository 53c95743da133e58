package proxy

// RDMAClientsByLoop returns how many RDMA clients each event loop has.
func (p *Proxy) RDMAClientsByLoop() []int {
	n := make([]int, len(p.loops))
	for _, l := range p.allListeners() {
		l.mu.Lock()
		for m := range l.clients.All() {
			if c, ok := m.Value.client.(*rdmaClient); ok {
				n[c.loop.index]++
			}
		}
		l.mu.Unlock()
	}
	return n
}
