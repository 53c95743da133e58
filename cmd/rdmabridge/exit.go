package main

import "errors"

// Exit codes. The package comment says what each means.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitWarned = 3 // of doctor
)

// An exitError is an error that chooses the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// failed wraps err so that the process exits with exitFailed. It returns nil for nil.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitFailed, err}
}

// A reportedError is an exitError that the log has: nothing is to be printed.
type reportedError struct{ *exitError }

// reported marks err as one that the log has, if it has.
func reported(err error, has bool) error {
	var exit *exitError
	if has && errors.As(err, &exit) {
		return &reportedError{exit}
	}
	return err
}
