package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A recvState is the owner of a Receive buffer: rules B1 and B2.
type recvState uint8

const (
	recvEmpty  recvState = iota // it has no lease: the last one was handed on and not replaced yet
	recvPosted                  // owned by the provider
	recvHeld                    // owned by the endpoint: completed, not yet reposted
)

// A recvBuffer is the slot of one Receive. Its index plus one is the Work Request
// ID.
type recvBuffer struct {
	lease *regmem.Lease
	state recvState
}

// A recvRing holds the Receives of one connection.
type recvRing struct {
	conn    fabric.Conn
	memory  *regmem.Account
	pool    *ReceivePool // used instead of memory unless it is nil
	size    int          // octets of one buffer
	buffers []recvBuffer
	empty   []int32 // indexes of buffers in state recvEmpty
	posted  int     // number of buffers in state recvPosted
}

// owned returns how many buffers have a lease, posted or held.
func (g *recvRing) owned() int { return len(g.buffers) - len(g.empty) }

// own leases and posts buffers until n are owned or an error stops it.
func (g *recvRing) own(n int) error { return g.fill(g.posted + n - g.owned()) }

func (g *recvRing) lease() (*regmem.Lease, error) {
	if g.pool != nil {
		return g.pool.lease(g.size)
	}
	return g.memory.Lease(g.size)
}

func (g *recvRing) init(n, size int, m *regmem.Account) {
	g.size, g.memory = size, m
	g.buffers = make([]recvBuffer, n)
	g.empty = make([]int32, n)
	for i := range g.empty {
		g.empty[i] = int32(n - 1 - i)
	}
}

// extend makes room for n buffers in all.
func (g *recvRing) extend(n int) {
	for len(g.buffers) < n {
		g.empty = append(g.empty, int32(len(g.buffers)))
		g.buffers = append(g.buffers, recvBuffer{})
	}
}

// fill leases and posts buffers until n Receives are posted or an error stops it.
func (g *recvRing) fill(n int) error {
	for g.posted < n && len(g.empty) > 0 {
		l, err := g.lease()
		if err != nil {
			return err
		}
		i := int(g.empty[len(g.empty)-1])
		g.empty = g.empty[:len(g.empty)-1]
		b := &g.buffers[i]
		b.lease, b.state = l, recvHeld
		if err := g.post(i); err != nil {
			return err
		}
	}
	return nil
}

// post gives buffer i, which the endpoint holds, to the provider. When that fails
// it releases the buffer: the connection is closing.
func (g *recvRing) post(i int) error {
	b := &g.buffers[i]
	if b.state != recvHeld {
		panic("BUG: rdmaside: posting a Receive buffer that is not held (B2)")
	}
	b.lease.Post()
	if err := g.conn.PostReceive(uint64(i)+1, b.lease.Bytes()); err != nil {
		b.lease.Unpost()
		g.drop(i)
		return err
	}
	b.state = recvPosted
	g.posted++
	return nil
}

// completed takes back the buffer of a completed Receive and returns its index.
func (g *recvRing) completed(id uint64) int {
	i := int(id - 1)
	b := &g.buffers[i]
	if b.state != recvPosted {
		panic("BUG: rdmaside: completion of a Receive that is not posted (B1)")
	}
	b.lease.Unpost()
	b.state = recvHeld
	g.posted--
	return i
}

// bytes returns the content of buffer i, which the endpoint holds.
func (g *recvRing) bytes(i int) []byte { return g.buffers[i].lease.Bytes() }

// take removes the lease of buffer i, which the endpoint holds, and hands it to
// the caller.
func (g *recvRing) take(i int) *regmem.Lease {
	b := &g.buffers[i]
	if b.state != recvHeld {
		panic("BUG: rdmaside: taking a Receive buffer that is not held (B2)")
	}
	l := b.lease
	b.lease, b.state = nil, recvEmpty
	g.empty = append(g.empty, int32(i))
	if g.pool != nil {
		g.pool.returned(l)
	}
	return l
}

// drop releases buffer i, which the endpoint holds.
func (g *recvRing) drop(i int) { g.take(i).Release() }

// abandon releases every buffer of a connection that was never set up, whose
// Receives therefore never complete.
func (g *recvRing) abandon() {
	for i := range g.buffers {
		if b := &g.buffers[i]; b.state == recvPosted {
			b.lease.Unpost()
			b.state = recvHeld
			g.posted--
			g.drop(i)
		}
	}
}
