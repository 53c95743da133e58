package proxy

import (
	"github.com/rdmabridge/rdmabridge/rdmaside/regmem"
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

// replyMemory is memory for Replies: want of it is relief's business.
type replyMemory struct {
	memory
	relief *relief
}

// Wait is part of tcpframe.Memory.
func (m replyMemory) Wait(n int, f func()) { m.memory.Wait(n, m.relief.waits(f)) }
