package tcpframe

import (
	"net"
	"time"
)

// minSilent is the least SilentTimeout. Linux answers at most one probe of a closed window
// in 500 ms: it ignores the second probe, which comes too early, and answers the third one,
// 0.8 s later. Only a longer silence means that the host is gone.
const minSilent = 2 * time.Second

// silentFor returns the silence after which a peer's host counts as gone. It is less than
// SilentTimeout, because keepalive takes time to ask and sweeps are late.
func silentFor(silent time.Duration) time.Duration { return silent / 8 * 5 }

// keepAliveFor returns the probes of an idle connection. With a SilentTimeout, one is sent
// in every quarter of it.
func keepAliveFor(silent time.Duration) net.KeepAliveConfig {
	if silent <= 0 {
		return net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 4}
	}
	every := max(silent/4, time.Second) // the kernel counts in seconds
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 4}
}
