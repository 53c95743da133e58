package main

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

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
