package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpMemory is a TCP client as the memory that its records are received in. Its methods are
// called on the client's loop.
type tcpMemory tcpClient

// Lease is part of tcpframe.Memory.
func (s *tcpMemory) Lease(n int) (tcpframe.Buffer, error) {
	// A probe is shorter: this is the beginning of another Call, whose memory counts for the tenant.
	if s.tenantOpen && n > tinyBlock && !s.enrollLate() {
		return nil, regmem.ErrBudget // the connection waits until it is closed
	}
	l, err := s.loop.memory.lease(&s.front, n)
	if err != nil {
		return nil, err
	}
	if s.waits.now&(1<<waitMemory) != 0 {
		s.wait(0, 1<<waitMemory)
	}
	return l, nil
}

// Return is part of tcpframe.Memory.
func (s *tcpMemory) Return(b tcpframe.Buffer) {
	s.loop.memory.returned(&s.front, b.(*regmem.Lease))
}

// Wait is part of tcpframe.Memory.
func (s *tcpMemory) Wait(n int, f func()) {
	s.wait(1<<waitMemory, 1<<waitMemory)
	s.loop.memory.wait(&s.front, n, f)
}

// An rdmaMemory is an RDMA client as the memory that its Read chunks are pulled into.
type rdmaMemory rdmaClient

// Lease is part of rdmaside.CallMemory.
func (s *rdmaMemory) Lease(n int) (*regmem.Lease, error) {
	l, err := s.loop.memory.lease(&s.front, n)
	if err == nil && s.waits.now&(1<<waitMemory) != 0 {
		s.front.wait(0, 1<<waitMemory)
	}
	return l, err
}

// Pulled is part of rdmaside.CallMemory.
func (s *rdmaMemory) Pulled(l *regmem.Lease) {
	if size := int64(l.Cap()); size > tinyBlock {
		s.loop.memory.arrived(&s.front, size)
	}
}

// Release is part of rdmaside.CallMemory.
func (s *rdmaMemory) Release(l *regmem.Lease, whole bool) {
	if !whole {
		s.loop.memory.returned(&s.front, l)
		return
	}
	size := int64(l.Cap())
	l.Release()
	if size > tinyBlock {
		s.loop.memory.give(s.ledger.host, size)
	}
}

// Wait is part of rdmaside.CallMemory.
func (s *rdmaMemory) Wait(n int, f func()) {
	s.front.wait(1<<waitMemory, 1<<waitMemory)
	s.loop.memory.wait(&s.front, n, f)
}
