package main

import (
	"os"
	"runtime/debug"

	"github.com/rdmabridge/rdmabridge/configs"
)

// heapFloor is the part of the heap limit that does not depend on memory.budget. It
// covers the rest of the process, including several thousand connections.
const heapFloor = 48 << 20

// limitHeap tells the garbage collector how much memory the process may use beside
// messages, which are not on the Go heap. Most of that is data read from connections
// that were paused since. Without a limit the collector would let the heap grow to
// twice that data. The limit is soft, and GOMEMLIMIT in the environment overrides it.
func limitHeap(m configs.Memory) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapFloor + int64(m.Budget)/8)
	}
}
