package main

import (
	"os"
	"strconv"
	"time"

	"github.com/rs/zerolog"
)

// watchdogTime is how often the service manager wants to hear WATCHDOG=1 from this process. It is 0 if it does
// not want to: sd_watchdog_enabled(3).
func watchdogTime() time.Duration {
	usec, err := strconv.ParseUint(os.Getenv("WATCHDOG_USEC"), 10, 40) // 12 days
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// keepWatchdog tells the service manager that this process works, four times as often as it wants to hear it, until
// the function that it returns is called. Each time it first calls answer, which waits for every event loop: with a loop
// that hangs the manager hears nothing more, and ends the process. After a hand-over the manager may have refused
// the first message of this process, which was not the main one yet.
func keepWatchdog(log zerolog.Logger, answer func(stop <-chan struct{}) bool) (stop func()) {
	every := watchdogTime() / 4
	if every == 0 {
		return func() {}
	}
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for answer(stopping) {
			tellSystemd(log, "WATCHDOG=1")
			select {
			case <-time.After(every):
			case <-stopping:
				return
			}
		}
	}()
	return func() {
		close(stopping)
		<-stopped
	}
}
