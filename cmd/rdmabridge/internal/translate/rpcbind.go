package translate

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

// RPCBind returns the address and the programs of each listener of c, and of the lock manager at locks, unless that is invalid.
// It calls addr for the address of a listener.
func RPCBind(c *configs.Config, addr func(listener string) string, locks netip.AddrPort) ([]rpcbind.Service, error) {
	var services []rpcbind.Service
	if locks.IsValid() {
		datagrams := lockPrograms
		if c.NLM.OffersMount() {
			datagrams = append(datagrams[:len(datagrams):len(datagrams)], mountPrograms...)
		}
		services = append(services, rpcbind.Service{Address: locks, Programs: lockPrograms}, rpcbind.Service{Address: locks, UDP: true, Programs: datagrams})
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		at, err := netip.ParseAddrPort(addr(l.Name))
		if err != nil {
			return nil, fmt.Errorf("rpcbind: listener %s: %w", l.Name, err)
		}
		programs, err := rpcbindPrograms(l)
		if err != nil {
			return nil, err
		}
		services = append(services, rpcbind.Service{Address: at, RDMA: l.RDMA(), Programs: programs})
	}
	return services, nil
}

// rpcbindDefault lists the programs announced for a listener that sends every program to one
// upstream: the programs that Linux serves on the port of NFS. Linux serves the related
// programs on other ports, so a listener that carries them has routes for them.
var rpcbindDefault = []rpcbind.Program{
	{Number: oncrpc.ProgramNFS, Version: 3},
	{Number: oncrpc.ProgramNFS, Version: 4},
	{Number: oncrpc.ProgramNFSACL, Version: 3},
}

// lockPrograms are those of the bridge's lock manager and status monitor.
var lockPrograms = []rpcbind.Program{
	{Number: oncrpc.ProgramNLM, Version: 1},
	{Number: oncrpc.ProgramNLM, Version: 3},
	{Number: oncrpc.ProgramNLM, Version: 4},
	{Number: oncrpc.ProgramNSM, Version: 1},
}

// mountPrograms are MOUNT, which the lock manager answers over UDP.
var mountPrograms = []rpcbind.Program{
	{Number: oncrpc.ProgramMount, Version: 1},
	{Number: oncrpc.ProgramMount, Version: 2},
	{Number: oncrpc.ProgramMount, Version: 3},
}

// rpcbindPrograms returns the programs that l accepts, sorted and without duplicates. A
// route for all versions of a program announces the versions that this build knows,
// which may be none. Two programs are never announced: 100000 is rpcbind itself, and
// 100417 is about the connection that its Call arrives on.
func rpcbindPrograms(l *configs.Listener) ([]rpcbind.Program, error) {
	var programs []rpcbind.Program
	if l.Upstream != "" {
		programs = append(programs, rpcbindDefault...)
	}
	for _, r := range l.Routes {
		n, err := Known.ResolveProgram(r.Program)
		if err != nil {
			return nil, fmt.Errorf("rpcbind: listener %s: %w", l.Name, err)
		}
		if n == oncrpc.ProgramRPCBind || n == oncrpc.ProgramCCP {
			continue
		}
		versions := r.Versions
		if len(versions) == 0 {
			versions = knownVersions(n)
		}
		for _, v := range versions {
			programs = append(programs, rpcbind.Program{Number: n, Version: v})
		}
	}
	slices.SortFunc(programs, func(a, b rpcbind.Program) int {
		if a.Number != b.Number {
			return int(int64(a.Number) - int64(b.Number))
		}
		return int(int64(a.Version) - int64(b.Version))
	})
	return slices.Compact(programs), nil
}

// knownVersions returns the versions of program that have a binding. For NFS they always
// include version 4.
func knownVersions(program uint32) []uint32 {
	var versions []uint32
	for _, b := range nfs.Bindings() {
		if b.Program == program {
			versions = append(versions, b.Version)
		}
	}
	if program == oncrpc.ProgramNFS && !slices.Contains(versions, 4) {
		versions = append(versions, 4)
	}
	return versions
}
