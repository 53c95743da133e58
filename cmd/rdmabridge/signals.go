package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notify returns a channel that receives SIGTERM and SIGINT, which drain a bridge,
// SIGHUP, which reloads its file, and SIGUSR2, which starts its successor.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR2)
	return ch, func() { signal.Stop(ch) }
}
