package main

import (
	"fmt"
	"net"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// notifySystemd tells the service manager about a change of state, "READY=1" or
// "STOPPING=1", as sd_notify(3) does. Without a service manager it does nothing.
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A path that begins with @ names an abstract socket; net knows that too.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(state))
	return err
}

// reloading is the state before a reload; READY=1 ends it. Type=notify-reload wants to
// know when it began.
func reloading() string {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", t.Nano()/1000)
}

func tellSystemd(log zerolog.Logger, state string) {
	if err := notifySystemd(state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("service manager not told")
	}
}
