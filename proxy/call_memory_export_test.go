package proxy

// CallMemoryCounts returns what callMemory counts for clients, all of which is 0 when no client is
// left: octets in bulk blocks, of unproven hosts, of turns, and the number of hosts.
func (p *Proxy) CallMemoryCounts() (n [4]int64) {
	m := p.hosts.calls
	m.mu.Lock()
	n[2] = m.pledged + m.pledgedBulk
	m.mu.Unlock()
	n[0] = m.bulk.Load()
	for k := range m.unproven {
		n[1] += m.unproven[k].Load()
	}
	p.hosts.mu.Lock()
	defer p.hosts.mu.Unlock()
	n[3] = int64(len(p.hosts.of))
	return n
}
