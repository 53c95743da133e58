package main

import (
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/admin"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// otherDescriptors are kept for everything that is not counted: event loops, the log, files that
// are read, name servers, hand-over.
const otherDescriptors = 64

// maxDescriptors bounds RLIMIT_NOFILE, which may be infinite.
const maxDescriptors = 1 << 24

// reservedDescriptors is how many descriptors a process with the configuration c needs that do
// not belong to clients: those of the admin server, the control socket and their connections, of
// listeners, and of connections to upstreams, each of which may be about to be replaced by another.
func reservedDescriptors(c *configs.Config) int {
	n := otherDescriptors + admin.MaxConns + control.MaxConnections + 8*c.Loops + 2*len(c.Listeners)
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		pools := len(u.Endpoints)
		if u.Failover == configs.On {
			pools = 1
		}
		n += 2*u.Pool.Connections*(pools-1) + u.Pool.Connections + u.Pool.Most()
	}
	return n
}

// clientDescriptors divides limit, which is RLIMIT_NOFILE: it returns how many descriptors clients
// may have. That is a quarter at least, even if too few are left for the rest.
func clientDescriptors(c *configs.Config, limit int) int {
	return max(limit-reservedDescriptors(c), limit/4)
}

// wantedDescriptors is how many clients the limits of one listener in c allow, of the one with the
// highest limits. The limits of several are seldom meant to be reached at once: every listener has
// a high one by default.
func wantedDescriptors(c *configs.Config) (n int) {
	for i := range c.Listeners {
		l := &c.Listeners[i].Limits
		n = max(n, l.Connections+l.Starting)
	}
	return n
}

// limitDescriptors puts the limit of clients' sockets that suits c in force.
func limitDescriptors(c *configs.Config, sockets *tcpframe.Sockets, log *zerolog.Logger) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		log.Warn().Str("event", "descriptors_short").Err(err).Msg("RLIMIT_NOFILE is not known; the limit of clients' sockets stays as it is")
		return
	}
	limit := int(min(r.Cur, maxDescriptors))
	n := clientDescriptors(c, limit)
	sockets.SetLimit(n)
	if wanted := wantedDescriptors(c); wanted > n {
		log.Warn().Str("event", "descriptors_short").Int("rlimit_nofile", limit).Int("clients", n).Int("limits", wanted).
			Msg("RLIMIT_NOFILE allows fewer clients than limits.connections of a listener; raise RLIMIT_NOFILE, or lower limits.connections")
	}
}
