// Command rdmabridge-bench measures bridges and servers of ONC RPC, and tests their clients.
//
// Each verb has a file: server.go answers Calls, and with the flags of faults.go it spoils some of them; load.go,
// compare.go and peers.go send Calls. They share the flags of flags.go and the providers of providers.go. What they run
// is in internal/bench and internal/faults.
//
// # Exit codes
//
//	0  success
//	1  failure: a server or a load ended with an error, or a Call or a Reply was wrong
//	2  nothing was attempted: the command line is wrong
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line and returns its exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newCommand(), args, stdout, stderr)
}

// buildInfo describes this binary.
func buildInfo() cli.Build { return cli.ReadBuild("rdmabridge-bench", providerNames()) }

func newCommand() *cobra.Command {
	cmd := cli.NewRoot(buildInfo(), "Measure bridges and servers of NFS and other ONC RPC",
		`Rdmabridge-bench measures how fast a bridge or a server answers Calls. "server" answers
Calls. "load" sends Calls to one address and measures. "compare" and "peers" send them to
several addresses in turn and print ratios. The server knows an echo program and NFSv3
NULL, GETATTR, READ and WRITE. The load checks every Reply. With --faults the server
spoils Replies, for testing clients.`)
	cmd.AddCommand(newServerCommand(), newLoadCommand(), newCompareCommand(), newPeersCommand())
	return cmd
}
