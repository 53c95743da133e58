package configs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Known says what this build of the bridge supports. The caller of Load provides it,
// because package configs imports no other package of the bridge.
type Known struct {
	Providers   []string                                          // RDMA providers that are built in
	Provider    func(name string) error                           // why a provider cannot be used; nil asks Providers
	IBVerbs     func(IBVerbs, string) error                       // why this host cannot use these settings, for a listener at an address or, with "", for an upstream; nil does not ask
	ListenerTLS func(*ListenerTLS) (warnings []string, err error) // why the files cannot be used; nil does not ask
	TLSName     func(string) error                                // why this is no pattern of names in certificates; nil does not ask
	UpstreamTLS func(*UpstreamTLS) (warnings []string, err error) // the same
	Environment bool                                              // whether files can name variables of the environment, and those override settings
	Flags       *pflag.FlagSet                                    // override settings: --log-level overrides log.level; nil has none
	HasAddress  func(netip.Addr) bool                             // whether this host has the address; nil knows loopback alone
	Directory   func(path string) bool                            // whether this host has the directory; nil does not ask
	Tracing     func() error                                      // why this build cannot send traces; nil if it can
	Program     func(name string) (uint32, bool)                  // RPC program by name; nil knows numbers only
	Bound       func(program, version uint32) bool                // whether the bridge knows the program's procedures; nil: it knows none
	Identity    func(pattern string) error                        // why a pattern of names in certificates is none; nil accepts all
	Procedures  func(name string) []RPCProcedure                  // RPC procedures by name; nil knows numbers only
}

// flag returns the flag that overrides the setting at path, or nil.
func (k Known) flag(path string) *pflag.Flag {
	if k.Flags == nil {
		return nil
	}
	return k.Flags.Lookup(strings.NewReplacer(".", "-", "_", "-").Replace(path))
}

// devices are words that people write for the provider of adapters, with what these speak.
var devices = map[string]string{
	"roce": "RoCE", "rocev2": "RoCE", "rxe": "RoCE", "ib": "InfiniBand", "infiniband": "InfiniBand", "verbs": "RoCE and InfiniBand", "mlx5": "RoCE and InfiniBand",
}

// checkProvider returns why a provider cannot be used.
func (k Known) checkProvider(name string) error {
	if k.Provider != nil {
		if err := k.Provider(name); err != nil {
			return err
		}
	}
	if !slices.Contains(k.Providers, name) {
		if protocol, ok := devices[strings.ToLower(name)]; ok {
			err := fmt.Errorf("%q is no provider; write %s, which uses adapters for %s", name, ProviderIBVerbs, protocol)
			if !slices.Contains(k.Providers, ProviderIBVerbs) {
				err = fmt.Errorf("%w, in a build that has it (rdmabridge version): docs/ibverbs.md", err)
			}
			return err
		}
		return fmt.Errorf("this build has no provider %q; write %s", name, alternatives(k.Providers))
	}
	return nil
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

// hasAddress reports whether a is an address of this host.
func (k Known) hasAddress(a netip.Addr) bool {
	return a.IsLoopback() || k.HasAddress != nil && k.HasAddress(a)
}

// hasDirectory reports whether this host has the directory. It is true if nobody can tell.
func (k Known) hasDirectory(path string) bool { return k.Directory == nil || k.Directory(path) }
