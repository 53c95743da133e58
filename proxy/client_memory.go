package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpMemory is a TCP client as the memory that its records are received in. Its methods are
// called on the client's loop.
type tcpMemory tcpClient

// Lease is part of tcpframe.Memory.
func (s *tcpMemory) Lease(n int) (tcpframe.Buffer, error) {
	// A probe is shorter: this is the beginning of another Call, whose memory counts for the tenant.
	if s.tenantOpen && n > admit.TinyBlock && !s.enrollLate() {
		return nil, regmem.ErrBudget // the connection waits until it is closed
	}
	l, err := s.loop.memory.Lease(&s.ledger, s.loop.calls, n)
	if err != nil {
		return nil, err
	}
	s.wait(0, 1<<gates.WaitMemory)
	return l, nil
}

// Return is part of tcpframe.Memory.
func (s *tcpMemory) Return(b tcpframe.Buffer) {
	s.loop.memory.Returned(&s.ledger, s.loop.calls, b.(*regmem.Lease))
}

// Wait is part of tcpframe.Memory.
func (s *tcpMemory) Wait(n int, f func()) {
	s.wait(1<<gates.WaitMemory, 1<<gates.WaitMemory)
	s.loop.memory.Wait(&s.ledger, n, f)
}

// An rdmaMemory is an RDMA client as the memory that its Read chunks are pulled into.
type rdmaMemory rdmaClient

// Lease is part of rdmaside.CallMemory.
func (s *rdmaMemory) Lease(n int) (*regmem.Lease, error) {
	l, err := s.loop.memory.Lease(&s.ledger, s.loop.calls, n)
	if err == nil {
		s.front.wait(0, 1<<gates.WaitMemory)
	}
	return l, err
}

// Pulled is part of rdmaside.CallMemory.
func (s *rdmaMemory) Pulled(l *regmem.Lease) {
	if size := int64(l.Size()); size > admit.TinyBlock {
		s.loop.memory.Arrived(&s.ledger, size)
	}
}

// Release is part of rdmaside.CallMemory.
func (s *rdmaMemory) Release(l *regmem.Lease, whole bool) {
	if !whole {
		s.loop.memory.Returned(&s.ledger, s.loop.calls, l)
		return
	}
	size := int64(l.Size())
	l.Release()
	if size > admit.TinyBlock {
		s.loop.memory.Give(s.ledger.Host(), size)
	}
}

// Wait is part of rdmaside.CallMemory.
func (s *rdmaMemory) Wait(n int, f func()) {
	s.front.wait(1<<gates.WaitMemory, 1<<gates.WaitMemory)
	s.loop.memory.Wait(&s.ledger, n, f)
}
