package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// memory lends the arena's memory to tcpframe, so that a record is copied once,
// from the socket to where RDMA can take it from.
type memory struct{ a *regmem.Account }

// Lease is part of tcpframe.Memory.
func (m memory) Lease(n int) (tcpframe.Buffer, error) {
	l, err := m.a.Lease(n)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Wait is part of tcpframe.Memory.
func (m memory) Wait(n int, f func()) { m.a.Wait(n, f) }

// callMemory returns the memory for Calls that arrive on one loop. It lends from that
// loop's stock.
func (p *Proxy) callMemory(loop int) tcpframe.Memory { return memory{p.loops[loop].calls} }

// replyMemory is memory for Replies: want of it is relief's business.
type replyMemory struct {
	memory
	relief *slowClients
}

// Wait is part of tcpframe.Memory.
func (m replyMemory) Wait(n int, f func()) { m.memory.Wait(n, m.relief.waits(f)) }

// octets is how many the parts of a Reply have.
func octets(parts [][]byte) (n int) {
	for _, p := range parts {
		n += len(p)
	}
	return n
}
