package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A memory lends an account of the arena to tcpframe. A record is copied once, from the
// socket into memory that RDMA can send from.
type memory struct{ a *regmem.Account }

// Lease is part of tcpframe.Memory.
func (m memory) Lease(n int) (tcpframe.Buffer, error) {
	l, err := m.a.Lease(n)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Return is part of tcpframe.Memory.
func (m memory) Return(b tcpframe.Buffer) { b.Release() }

// Wait is part of tcpframe.Memory.
func (m memory) Wait(n int, f func()) { m.a.Wait(n, f) }

// A replyMemory lends memory for Replies, and tells admit.SlowReaders when there is none.
type replyMemory struct {
	memory
	slow *admit.SlowReaders
}

// Wait is part of tcpframe.Memory.
func (m replyMemory) Wait(n int, f func()) { m.memory.Wait(n, m.slow.Waits(f)) }

// octets is how many the parts of a Reply have.
func octets(parts [][]byte) (n int) {
	if len(parts) == 1 { // mostly
		return len(parts[0])
	}
	for _, p := range parts {
		n += len(p)
	}
	return n
}
