package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interruptible is a context that SIGTERM and SIGINT end.
func interruptible() (context.Context, func()) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
}

// notify delivers the signals that end a process gently, the one for its file, and the
// one for its successor.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR2)
	return ch, func() { signal.Stop(ch) }
}
