package main

import (
	"net"
	"strconv"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/nfsmount"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A mountWatch says when a bridge is no longer needed by the mounts of its host: when there is neither a mount from its port
// nor a client. A client without a mount is the kernel while it mounts, or after a lazy umount.
type mountWatch struct {
	port   uint16
	used   time.Time // when there was a mount or a client, or when the bridge started
	proven bool      // there was a mount

	first time.Duration // how long to wait for the first mount
	last  time.Duration // how long to wait for another mount after the last
}

// mountLook is how often a bridge looks whether it is needed. A mount that is gone sooner may not be seen, and then the bridge
// waits for a first one.
const mountLook = time.Second

// needed reports whether the bridge is needed. The table is /proc/self/mountinfo.
func (w *mountWatch) needed(now time.Time, table string, clients func() int) bool {
	for _, m := range nfsmount.Mounts(table) {
		if m.Port == w.port {
			w.used, w.proven = now, true
			return true
		}
	}
	if clients() > 0 {
		w.used = now
		return true
	}
	patience := w.first
	if w.proven {
		patience = w.last
	}
	return now.Sub(w.used) < patience
}

// endUnmounted has b drain when no mount of this host needs it any more.
func endUnmounted(b *bridge) error {
	_, s, err := net.SplitHostPort(b.proxy.Addr(b.config.Listeners[0].Name))
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return err
	}
	b.endUnneeded(mountWatch{port: uint16(port), used: time.Now(), first: 2 * time.Minute, last: 3 * time.Second}, mountLook)
	return nil
}

// endUnneeded has b drain when w says so, which is asked at an interval.
func (b *bridge) endUnneeded(w mountWatch, interval time.Duration) {
	clients := func() (n int) {
		d := b.proxy.Status(status.Query{})
		for i := range d.Listeners {
			n += d.Listeners[i].Clients
		}
		return n
	}
	b.every(interval, func() (again bool) {
		table, err := nfsmount.MountTable()
		if err != nil || w.needed(time.Now(), table, clients) {
			return true // an error does not say that there is no mount
		}
		select {
		case b.stop <- stopReason{reason: "unmounted"}:
		default: // another reason to drain was faster
		}
		return false
	})
}
