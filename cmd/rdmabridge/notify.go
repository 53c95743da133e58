package main

import (
	"net"
	"os"
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
