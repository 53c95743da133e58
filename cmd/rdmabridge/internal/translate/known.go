// Package translate says what a configuration means to the packages that carry it out: it makes their options from
// the types of package configs. [Known] is the other direction: what configs cannot know about this build.
package translate

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// Known tells package configs which providers and programs this build knows.
var Known = configs.Known{
	Providers:   providerNames(),
	Provider:    providerError,
	IBVerbs:     ibverbsError,
	ListenerTLS: listenerTLSError,
	UpstreamTLS: upstreamTLSError,
	TLSName:     patternError,
	Environment: true,
	HasAddress:  hasAddress,
	Directory:   isDirectory,
	Program:     oncrpc.ProgramByName,
	Bound:       isBound,
	Identity:    patternError,
	Procedures:  proceduresByName,
}

// ownAddresses are the addresses of this host when it was first asked.
var ownAddresses = sync.OnceValue(func() (own []netip.Addr) {
	all, _ := net.InterfaceAddrs() // without them, only loopback is known
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own
})

// hasAddress reports whether this host has the address a.
func hasAddress(a netip.Addr) bool { return slices.Contains(ownAddresses(), a.Unmap().WithZone("")) }

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// proceduresByName tells package configs the procedures of a name.
func proceduresByName(name string) (all []configs.RPCProcedure) {
	for _, p := range nfs.Procedures(name) {
		all = append(all, configs.RPCProcedure(p))
	}
	return all
}

// patternError tells package configs why a pattern of names in certificates is none.
func patternError(pattern string) error {
	_, err := tlsconf.ParsePattern(pattern)
	return err
}

// isBound reports whether a binding knows a version of a program.
func isBound(program, version uint32) bool {
	return slices.ContainsFunc(nfs.Bindings(), func(b nfs.Bound) bool { return b.Program == program && b.Version == version })
}
