package proxy

// RDMAClientsByLoop returns how many RDMA clients each event loop has.
func (p *Proxy) RDMAClientsByLoop() []int {
	n := make([]int, len(p.loops))
	for _, f := range p.allFronts() {
		if _, ok := f.client.(*rdmaClient); ok {
			n[f.loop.index]++
		}
	}
	return n
}
