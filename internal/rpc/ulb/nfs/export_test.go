package nfs

// Len returns how many sessions are known.
func (s *Sessions) Len() (n int) {
	for i := range s.shards {
		h := &s.shards[i]
		h.mu.RLock()
		n += len(h.limits)
		h.mu.RUnlock()
	}
	return n
}
