package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// known tells package configs which providers and programs this build knows.
var known = configs.Known{
	Providers:   providerNames(),
	Provider:    providerError,
	IBVerbs:     ibverbsError,
	ListenerTLS: listenerTLSError,
	UpstreamTLS: upstreamTLSError,
	TLSName:     func(s string) error { _, err := tlsconf.ParsePattern(s); return err },
	Environment: true,
	HasAddress:  hasAddress,
	Directory:   isDirectory,
	Tracing:     tracingError,
	Program:     oncrpc.ProgramByName,
	Bound:       isBound,
	Identity:    identityError,
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

// standardInput stands for standard input where a file is named.
const standardInput = "-"

// knownWith is known with flags that override settings.
func knownWith(flags *pflag.FlagSet) configs.Known {
	k := known
	k.Flags = flags
	return k
}

// loadConfig loads configuration files, or standard input. A file with problems makes the process exit
// with cli.ExitFailed, a file that cannot be read with cli.ExitUsage.
func loadConfig(paths []string, known configs.Known) (*configs.Config, error) {
	var c *configs.Config
	var err error
	if slices.Equal(paths, []string{standardInput}) {
		c, err = configs.LoadReader("standard input", os.Stdin, known)
	} else {
		c, err = configs.LoadFiles(paths, known)
	}
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		return nil, cli.Failed(err)
	case err != nil:
		return nil, cli.Usage(err)
	}
	return c, nil
}

// filesFlag adds the flag --config, -c, which may be there several times. what says what becomes of the files.
func filesFlag(cmd *cobra.Command, files *[]string, what string) {
	cmd.Flags().StringArrayVarP(files, "config", "c", nil, what+" `FILE`, YAML, or the files of a directory; several override each other in their order")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for unknown flags
}

// configFlag makes cmd take configuration files, as flag --config, -c, or one as its argument, and flags that override
// their settings.
func configFlag(cmd *cobra.Command, files *[]string) {
	filesFlag(cmd, files, "read the configuration from")
	cmd.Flags().String("log-level", "", "override log.level with `LEVEL`")
	cmd.Flags().String("log-format", "", "override log.format with `FORMAT`")
	cmd.Flags().String("admin-address", "", "override admin.address with `ADDRESS`")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return fmt.Errorf("%q is too much: rdmabridge %s", args[1], cmd.Use)
		case len(args) == 1 && len(*files) > 0:
			return fmt.Errorf("two files, %s and %s: write -c before each, or one alone: rdmabridge %s", (*files)[0], args[0], cmd.Use)
		case len(args) == 1:
			*files = args
		case len(*files) == 0:
			return fmt.Errorf("a configuration file is missing: rdmabridge %s", cmd.Use)
		}
		return nil
	}
	cmd.ValidArgsFunction = completeConfig
}

// completeConfig completes the name of one configuration file.
func completeConfig(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
