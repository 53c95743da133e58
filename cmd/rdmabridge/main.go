// Command rdmabridge carries ONC RPC, NFS above all, between TCP and RDMA.
//
// # Exit codes
//
//	0  done: drained after a signal, or the file is right
//	1  failed: the file has problems, or the bridge could not start, or stopped
//	   before its Calls were answered
//	2  not even tried: the command line is wrong, or the file cannot be read
//
// explain says 1 of a file that it cannot read.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line and returns its exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	return executeCommand(newCommand(), args, stdout, stderr)
}

func executeCommand(cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.Execute()
	var exit *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		fmt.Fprintln(stderr, exit.err)
		return exit.code
	}
	// What is left was found by cobra.
	fmt.Fprintf(stderr, "%v\nSee rdmabridge --help.\n", err)
	return exitUsage
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "rdmabridge",
		Short:         "Carry NFS and other ONC RPC between TCP and RDMA",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(newServeCommand(), newCheckCommand(), newDemoCommand(), newExplainCommand(), newBenchCommand(), newVersionCommand())
	return cmd
}
