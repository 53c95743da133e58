package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// A CallMemory lends the memory that the Calls of one connection are pulled into. Its methods are
// called on the connection's loop.
type CallMemory interface {
	// Lease lends n octets, or fails as regmem.Account.Lease does.
	Lease(n int) (*regmem.Lease, error)
	// Pulled is called when the Call in l has arrived whole.
	Pulled(l *regmem.Lease)
	// Release releases l. whole says that Pulled was called for it.
	Release(l *regmem.Lease, whole bool)
	// Wait calls f as regmem.Account.Wait does. It need not call f once the connection has
	// ended.
	Wait(n int, f func())
}

// accountMemory is the CallMemory of a connection whose handler gives it no other.
type accountMemory struct{ *regmem.Account }

func (accountMemory) Pulled(*regmem.Lease)            {}
func (accountMemory) Release(l *regmem.Lease, _ bool) { l.Release() }

// SetMemory makes m the memory that Calls are pulled into. ConnHandler.Opened calls it.
func (c *ResponderConn) SetMemory(m CallMemory) { c.memory = m }
