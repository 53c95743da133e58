package proxy

import "sync/atomic"

// A hostMemory is what callMemory knows of one host.
type hostMemory struct {
	held atomic.Int64 // octets of memory for Calls that the host holds, counted in blocks
	bulk atomic.Int64 // those of them that are in bulk blocks
	sent atomic.Int64 // octets of Calls in mid and bulk blocks that have come whole from it

	line *hostLine // made when the host waits for the first time; guarded by callMemory.mu
}

// A hostLine is what callMemory knows of a host that has waited for memory. callMemory.mu guards it.
type hostLine struct {
	pledged int64           // octets kept for waiters that were called
	waiting []*memoryWaiter // in order
	listed  bool            // the host is in callMemory.line
}

// proven reports whether the host has sent as much before as it wants memory for now.
func (h *host) proven(size int64) bool { return h.memory.sent.Load() >= size }

// take counts a block of size octets.
func (h *host) take(size int64) {
	h.memory.held.Add(size)
	if kindOf(size) == bulkBlock {
		h.memory.bulk.Add(size)
	}
}

// give undoes take. A host without connections is forgotten when it gives its last block back.
func (h *host) give(size int64) {
	if kindOf(size) == bulkBlock {
		h.memory.bulk.Add(-size)
	}
	if h.memory.held.Add(-size) == 0 && h.orphan.Load() {
		h.all.mu.Lock()
		h.all.forget(h)
		h.all.mu.Unlock()
	}
}
