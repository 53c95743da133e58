package listener

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// roomEvery is the least time between two looks for clients to close.
const roomEvery = time.Second

// An RDMARoom finds room for RDMA clients, of all listeners together. It is safe for concurrent use.
type RDMARoom struct {
	loops []*Loop // constant, as the next two
	all   Set
	now   func() int64

	mu   sync.Mutex   // held while home chooses a loop; a leaf
	made atomic.Int64 // when makeRoom last looked for clients to close
}

// NewRDMARoom returns the room of all listeners on these loops. now is the clock of the loops.
func NewRDMARoom(loops []*Loop, all Set, now func() int64) *RDMARoom {
	return &RDMARoom{loops: loops, all: all, now: now}
}

// home returns the loop with the fewest RDMA clients, and counts another one there. If clients had the loops in turn,
// those that come and go, such as probes, would put those that stay on one loop.
func (r *RDMARoom) home() *Loop {
	r.mu.Lock()
	defer r.mu.Unlock()
	home := slices.MinFunc(r.loops, func(a, b *Loop) int {
		return cmp.Compare(a.rdmaClients.Load(), b.rdmaClients.Load())
	})
	home.rdmaClients.Add(1)
	return home
}

// makeRoom closes RDMA clients that are idle and have far more Receives than their share,
// because there is no other way to take credits back from a client that sends nothing. Such a
// client connects again, with few credits, when it has something to send. makeRoom is called
// when there was no memory for a new client.
func (r *RDMARoom) makeRoom() {
	now := r.now() // the wall clock may be set back
	last := r.made.Load()
	if last != 0 && now-last < int64(roomEvery) || !r.made.CompareAndSwap(last, now) {
		return
	}
	for _, l := range r.all.AllListeners() {
		l.eachRDMA(Client.CloseIfHoarding)
	}
}
