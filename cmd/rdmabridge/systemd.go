package main

import (
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// tellSystemd notifies the service manager of a change of state, such as daemon.SdNotifyReady. It logs a failure to say
// that the bridge is ready, for which the manager waits. Other failures mean no more than that the manager has ended, as
// it does at the shutdown of the host. It does nothing without a service manager.
func tellSystemd(log zerolog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil && strings.Contains(state, daemon.SdNotifyReady) {
		log.Warn().Str("event", "notify_failed").Err(err).Str("state", state).Msg("could not notify the service manager")
	}
}

// reloading returns the state to send before a reload; READY=1 follows the reload.
// Type=notify-reload requires the time at which the reload began.
func reloading() string { return daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec() }
