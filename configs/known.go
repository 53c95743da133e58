package configs

import (
	"fmt"
	"strconv"
)

// Known is what this build of the bridge can do. Package configs imports
// nothing of the bridge, so its caller says.
type Known struct {
	Providers []string                         // RDMA providers that are built in
	Program   func(name string) (uint32, bool) // RPC program by name; nil knows numbers only
}

// ResolveProgram finds the number of an RPC program.
func (k Known) ResolveProgram(p Program) (uint32, error) {
	if k.Program != nil {
		if n, ok := k.Program(string(p)); ok {
			return n, nil
		}
	}
	n, err := strconv.ParseUint(string(p), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no RPC program; write a name such as nfs or mount, or a number", string(p))
	}
	return uint32(n), nil
}
