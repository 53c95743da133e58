package tcpframe

// A Buffer is memory on loan for one record.
type Buffer interface {
	// Bytes is the memory; its capacity is what Resize may grow to.
	Bytes() []byte
	// Resize sets len(Bytes()), up to its capacity. Contents stay.
	Resize(n int)
	// Release gives the memory back. It is called once, on any goroutine.
	Release()
}

// Memory lends Buffers. Its methods are called on many loops at once.
type Memory interface {
	// Lease lends n octets, whose contents are undefined. An error means that
	// others hold too much now, and that Wait will tell when to ask again; n
	// never exceeds ConnOptions.MaxRecord.
	Lease(n int) (Buffer, error)
	// Wait calls f once, on any goroutine, when a Lease of n may succeed, which
	// may be at once: others may have released since Lease said no. f does not
	// block. It is called even if the connection has ended meanwhile.
	Wait(n int, f func())
}

// A LoopMemory has a Memory for each loop, indexed by Loop.Index: what one loop
// alone takes from and gives back to costs less than what all share. A Conn whose
// ConnOptions.Memory is a LoopMemory uses its own loop's.
type LoopMemory interface {
	Memory
	On(loop int) Memory
}

// heap is Memory without a limit.
type heap struct{}

type heapBuffer struct{ b []byte }

func (heap) Lease(n int) (Buffer, error) { return &heapBuffer{make([]byte, n)}, nil }
func (heap) Wait(_ int, f func())        { go f() }
func (h *heapBuffer) Bytes() []byte      { return h.b }
func (h *heapBuffer) Resize(n int)       { h.b = h.b[:n] }
func (h *heapBuffer) Release()           { h.b = nil }
