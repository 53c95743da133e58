package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes. The comments of the programs say what each means.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// An ExitError is an error that chooses the exit code.
type ExitError struct {
	Code   int
	Err    error
	Logged bool // the log has the error: Run prints nothing
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// Failed wraps err so that the process exits with ExitFailed. It returns nil for nil.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: ExitFailed, Err: err}
}

// Usage wraps err so that the process exits with ExitUsage, without a word about help.
func Usage(err error) error { return &ExitError{Code: ExitUsage, Err: err} }

// Run runs cmd with args. It prints the error, if there is one, and returns the exit code.
func Run(cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.InitDefaultCompletionCmd() // which writes to the output that cmd has now
	if completion, _, err := cmd.Find([]string{"completion"}); err == nil {
		Group(completion)
	}
	ran, err := cmd, error(nil)
	if found, rest, unknown := cmd.Find(args); unknown == nil { // otherwise ExecuteC says so, or has a command of cobra's
		ran, err = found, oneDash(found, rest)
	}
	if err == nil {
		ran, err = cmd.ExecuteC()
	}
	if err == nil {
		return ExitDone
	}
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		if !exit.Logged {
			fmt.Fprintln(stderr, exit.Err)
		}
		return exit.Code
	}
	// Every other error is about the command line.
	fmt.Fprintln(stderr, withHelp(ran, err))
	return ExitUsage
}

// Interruptible returns a context that SIGTERM and SIGINT cancel.
func Interruptible() (context.Context, func()) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
}
