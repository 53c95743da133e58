package main

import (
	"fmt"
	"net"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// tellSystemd notifies the service manager and logs a failure to do so.
func tellSystemd(log zerolog.Logger, state string) {
	if err := notifySystemd(state); err != nil {
		log.Warn().Str("event", "notify_failed").Err(err).Str("state", state).Msg("could not notify the service manager")
	}
}

// notifySystemd notifies the service manager of a change of state, "READY=1" or
// "STOPPING=1", as sd_notify(3) does. It does nothing without a service manager.
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// Package net treats a path that begins with @ as an abstract socket, as systemd does.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(state))
	return err
}

// reloading returns the state to send before a reload; READY=1 follows the reload.
// Type=notify-reload requires the time at which the reload began.
func reloading() string {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", t.Nano()/1000)
}
