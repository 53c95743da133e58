package main

import (
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// tellSystemd notifies the service manager of a change of state, such as daemon.SdNotifyReady, and logs a failure to
// do so. It does nothing without a service manager.
func tellSystemd(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn().Str("event", "notify_failed").Err(err).Str("state", state).Msg("could not notify the service manager")
	}
}

// reloading returns the state to send before a reload; READY=1 follows the reload.
// Type=notify-reload requires the time at which the reload began.
func reloading() string { return daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec() }
