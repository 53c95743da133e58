package configs

import (
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// MachineMemory returns how many octets of memory this process may use: the limit of its cgroup
// (version 1 or 2) or of a cgroup above, or the memory of the machine if that is less. It is
// [math.MaxInt64] if neither can be read.
func MachineMemory() Size {
	least := Size(math.MaxInt64)
	for _, limit := range []memlimit.Provider{memlimit.FromCgroup, memlimit.FromSystem} {
		if n, err := limit(); err == nil && n > 0 && n < math.MaxInt64 {
			least = min(least, Size(n))
		}
	}
	return least
}

const (
	// mostBudget is the default of memory.budget where memory is plentiful.
	mostBudget = 1 * GiB
	// heapShare is what the process needs beside messages, however small its budget is.
	heapShare = 32 * MiB
)

// defaultBudget is the default of memory.budget. It is computed once, so that a reload finds the
// same value.
var defaultBudget = budgetFor(MachineMemory())

// budgetFor returns the budget for messages of a process that may use memory octets. Half of what
// is left beside the process itself goes to messages. The other half is for the rest of the Go
// heap and for the buffers of sockets, which the kernel charges to a container.
func budgetFor(memory Size) Size {
	return max(1*MiB, min(mostBudget, (memory-heapShare)/2/MiB*MiB))
}

// DefaultBudget is the default of memory.budget on this machine.
func DefaultBudget() Size { return defaultBudget }
