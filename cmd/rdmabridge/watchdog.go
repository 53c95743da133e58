package main

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// keepWatchdog tells the service manager that this process works, four times as often as it wants to hear it, until
// the function that it returns is called. Each time it first calls answer, which waits for every event loop: with a loop
// that hangs the manager hears nothing more, and ends the process. After a hand-over the manager may have refused
// the first message of this process, which was not the main one yet.
func keepWatchdog(log zerolog.Logger, answer func(stop <-chan struct{}) bool) (stop func()) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn().Str("event", "notify_failed").Err(err).Msg("the service manager asks for a watchdog in a way that is not understood; it gets none")
	}
	every := limit / 4
	if every == 0 {
		return func() {}
	}
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for answer(stopping) {
			tellSystemd(log, daemon.SdNotifyWatchdog)
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
