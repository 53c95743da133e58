package tcpframe

// A Buffer is memory on loan for one record.
type Buffer interface {
	// Bytes returns the memory. Resize can make it as long as its capacity.
	Bytes() []byte
	// Resize sets len(Bytes()), up to its capacity, and keeps the contents.
	Resize(n int)
	// Release gives the memory back. It is called once, on any goroutine.
	Release()
}

// Memory lends Buffers. Its methods are called on any loop. A Memory for each loop costs less
// than a Memory that all loops share: see ConnOptions.Memory.
type Memory interface {
	// Lease lends n octets, whose contents are undefined. n never exceeds
	// ConnOptions.MaxRecord. An error means that too much is on loan now, and that Wait
	// will tell when to try again.
	Lease(n int) (Buffer, error)
	// Return takes back a Buffer in which no record was delivered. The Conn calls it on
	// its loop.
	Return(b Buffer)
	// Wait calls f once, on any goroutine, when a Lease of n octets may succeed. That may
	// be at once, since Buffers may have been released after Lease returned its error.
	// f does not block. Wait need not call it once the connection has ended.
	Wait(n int, f func())
}

// heap is a Memory without a limit: it allocates each Buffer.
type heap struct{}

type heapBuffer struct{ b []byte }

func (heap) Lease(n int) (Buffer, error) { return &heapBuffer{make([]byte, n)}, nil }
func (heap) Return(b Buffer)             { b.Release() }
func (heap) Wait(_ int, f func())        { go f() }
func (h *heapBuffer) Bytes() []byte      { return h.b }
func (h *heapBuffer) Resize(n int)       { h.b = h.b[:n] }
func (h *heapBuffer) Release()           { h.b = nil }
