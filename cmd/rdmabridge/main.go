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

	"github.com/rdmabridge/rdmabridge/configs"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
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

// An exitError ends the process with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// failed is an error that ends the process with exitFailed.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitFailed, err}
}

// loadConfig reads a file, with the exit code that its error deserves.
func loadConfig(path string) (*configs.Config, error) {
	c, err := configs.LoadFile(path, known)
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		return nil, failed(err)
	case err != nil:
		return nil, &exitError{exitUsage, err}
	}
	return c, nil
}
