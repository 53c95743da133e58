package pool

import "github.com/rdmabridge/rdmabridge/internal/loop"

// Elsewhere is the affinity of a goroutine that is not a loop.
const Elsewhere = loop.Elsewhere
