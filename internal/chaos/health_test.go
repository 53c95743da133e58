package chaos

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Clients next to trouble
//
// A healthy client has one Call at a time outstanding at a server without faults, next to
// clients whose Calls hang, that are silent or that are very many. It must be answered all the
// same. The bounds are generous, for a busy machine: clients that are answered in fewer than three
// quarters of the seconds, or one that is not answered at all for half a minute, have been kept
// out. (Without package pool's rules for sharing they are answered in a half.) Calls that hang have
// a deadline of a minute, so nothing but these rules lets others in before.

const (
	hungTimeout = 60 * time.Second // timeouts.call of the quiet upstream
	starving    = 30 * time.Second
	healthSlot  = time.Second
	healthSlots = 50 // fewer say nothing
)

// A health is how a healthy client fares.
type health struct {
	name string
	last atomic.Int64 // the latest Reply, or the time of its first Call, in Unix nanoseconds
}

func (h *health) answered() { h.last.Store(time.Now().UnixNano()) }

// An infirmary has all healthy clients. It is safe for concurrent use.
type infirmary struct {
	mu    sync.Mutex // guards all
	all   []*health
	total atomic.Int64 // slots of all clients
	good  atomic.Int64 // of those, with a Reply
	up    atomic.Int64 // since when the bridge is up, in Unix nanoseconds; 0: it is not
}

// admit adds a healthy client.
func (i *infirmary) admit(name string) *health {
	h := &health{name: name}
	h.answered()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, h)
	return h
}

// away notes that the bridge is not up, or that its clients have to connect again, until f
// returns.
func (i *infirmary) away(f func()) {
	i.up.Store(0)
	f()
	i.up.Store(time.Now().UnixNano())
}

// visit looks at the healthy clients until ctx ends. A slot counts if the bridge has been up
// throughout, and for as long before.
func (i *infirmary) visit(ctx context.Context, b *book) {
	i.up.Store(time.Now().UnixNano())
	tick := time.NewTicker(healthSlot)
	defer tick.Stop()
	for was := time.Now(); !b.broken.Load(); {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		up := i.up.Load()
		// A late look says that the machine is busy.
		if up != 0 && up < was.Add(-healthSlot).UnixNano() && now.Sub(was) < 2*healthSlot {
			i.look(b, was, now, time.Unix(0, up))
		}
		was = now
	}
}

func (i *infirmary) look(b *book, was, now, up time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, h := range i.all {
		last := time.Unix(0, h.last.Load())
		i.total.Add(1)
		if !last.Before(was) {
			i.good.Add(1)
		}
		if last.Before(up) {
			last = up
		}
		if d := now.Sub(last); d > starving {
			b.wrong("%s was not answered for %v next to clients whose Calls hang", h.name, d.Round(time.Second))
		}
	}
}

// judge checks the slots of the whole run.
func (i *infirmary) judge(b *book) {
	if total, good := i.total.Load(), i.good.Load(); total >= healthSlots && 4*good < 3*total {
		b.wrong("healthy clients were answered in %d of %d seconds", good, total)
	}
}
