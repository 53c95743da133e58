package main

import (
	"fmt"
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
		debug.SetMemoryLimit(int64(heapLimit(m)))
	}
}

// heapLimit is the limit of limitHeap.
func heapLimit(m configs.Memory) configs.Size { return heapFloor + m.Budget/8 }

// memoryNeed returns how much memory the process may come to use: messages, the Go heap, and the
// program itself.
func memoryNeed(m configs.Memory) configs.Size {
	return m.Budget + heapLimit(m) + heapFloor/3
}

// tooLittleMemory returns a sentence about a budget that does not fit the memory of the machine
// or the container, and nothing if it fits.
func tooLittleMemory(m configs.Memory, available configs.Size) string {
	if need := memoryNeed(m); need > available {
		return fmt.Sprintf("memory.budget %s may take %s of memory in all, and the machine or the container allows %s: the kernel may kill the bridge",
			m.Budget, need, available)
	}
	return ""
}
