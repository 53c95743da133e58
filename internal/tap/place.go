package tap

import (
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Bounds of the Calls that are asked about at a time.
const (
	mostEnds    = 256
	mostWaiting = 1 << 20 // octets of their messages
)

// An end is a Call that is over, with the event that says so.
type end struct {
	*followed
	event event
}

// judge decides about the Calls that wait for the names of their files. Whoever learns names has seen the ends of these
// Calls on the same loops, so it knows what they and those before them have told.
func (c *capture) judge() error {
	if len(c.ends) == 0 {
		return nil
	}
	ends := c.ends
	c.ends, c.waiting = c.ends[:0], 0
	calls := make([]names.Exchange, len(ends))
	for i := range ends {
		calls[i] = ends[i].exchange()
	}
	var places []names.Place
	if w := c.names(); w != nil {
		places = w.Where(calls)
	}
	for i := range ends {
		v := names.Unknown
		if places != nil { // a reload may have switched names off
			v = c.opts.Place.Judge(&places[i])
		}
		f := ends[i].followed
		if v == names.In {
			if err := c.decide(f, &ends[i].event); err != nil {
				return err
			}
			continue
		}
		if v == names.Unknown {
			c.done.Unknown++
		}
		c.calls.recycle(f)
	}
	return nil
}

// exchange returns the Call and the Reply of f. Of the messages of both legs, it takes those of which more was captured.
func (f *followed) exchange() (x names.Exchange) {
	for i := range f.kept {
		k := &f.kept[i]
		if k.conn.Leg == observe.TapClients {
			x.Listener = k.conn.Name
		}
		to := &x.Call
		if k.reply {
			to = &x.Reply
		}
		if k.size > len(*to) {
			*to = f.memory[k.from : k.from+k.size]
		}
	}
	return x
}
