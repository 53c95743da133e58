package configs

import (
	"fmt"
	"strconv"
)

// Known says what this build of the bridge supports. The caller of Load provides it,
// because package configs imports no other package of the bridge.
type Known struct {
	Providers []string                         // RDMA providers that are built in
	Program   func(name string) (uint32, bool) // RPC program by name; nil knows numbers only
}

// ResolveProgram returns the number of an RPC program.
func (k Known) ResolveProgram(p Program) (uint32, error) {
	if k.Program != nil {
		if n, ok := k.Program(string(p)); ok {
			return n, nil
		}
	}
	n, err := strconv.ParseUint(string(p), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not an RPC program; write a name such as nfs or mount, or a number", string(p))
	}
	return uint32(n), nil
}
