package proxy

// CallMemoryCounts returns what admit.Memory counts for clients, all of which is 0 when no client is
// left: octets in bulk blocks, of unproven hosts, of turns, and the number of hosts.
func (p *Proxy) CallMemoryCounts() (n [4]int64) {
	n[0], n[1], n[2] = p.memory.Counts()
	n[3] = int64(p.hosts.Count())
	return n
}
