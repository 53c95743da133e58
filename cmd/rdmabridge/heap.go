package main

import (
	"os"
	"runtime/debug"

	"github.com/rdmabridge/rdmabridge/configs"
)

// heapFloor is what the Go heap may always have: the rest of the process, several
// thousand connections included.
const heapFloor = 48 << 20

// limitHeap tells the garbage collector how much there is beside the messages, which
// are not on its heap: what paused connections have been read already, above all, for
// which it would otherwise let the heap double. It is no hard limit. GOMEMLIMIT in the
// environment counts more.
func limitHeap(m configs.Memory) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapFloor + int64(m.Budget)/8)
	}
}
