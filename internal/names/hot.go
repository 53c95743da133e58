package names

import (
	"net/netip"
	"time"
)

// The most counters of each kind. Those whose part of all Calls is more than one of so many are surely among them.
const (
	mostFiles   = 512
	mostExports = 128
	mostClients = 512
)

// slot is the time that one set of counters is for, and mostSlots how many are kept.
const (
	slot      = time.Minute
	mostSlots = 11 // the last ten minutes, and the one that has begun
)

// A file is a handle as counters know it.
type file struct{ listener, handle string }

// A user is a client of an export.
type user struct {
	export export
	client netip.Addr
}

// counts are the counters of a slot.
type counts struct {
	began   time.Time
	files   *sketch[file]
	exports *sketch[export]
	users   *sketch[user]

	looked, stand float64 // the Calls that were looked at, and those that they stand for
}

// hot counts what is used, for the last minutes.
type hot struct{ slots []*counts } // the newest first

// now returns the counters for the time at.
func (h *hot) now(at time.Time) *counts {
	if len(h.slots) > 0 && at.Sub(h.slots[0].began) < slot {
		return h.slots[0]
	}
	c := &counts{began: at, files: newSketch[file](mostFiles), exports: newSketch[export](mostExports), users: newSketch[user](mostClients)}
	h.slots = append([]*counts{c}, h.slots[:min(len(h.slots), mostSlots-1)]...)
	return c
}

// last returns the slots that began in the last minutes, and the one before them, and when the oldest began.
func (h *hot) last(minutes int, now time.Time) (slots []*counts, since time.Time) {
	since = now
	for i, c := range h.slots {
		if i > minutes || now.Sub(c.began) > time.Duration(minutes+1)*slot {
			break
		}
		slots, since = h.slots[:i+1], c.began
	}
	return slots, since
}

// part is the part of the Calls of slots that was looked at.
func part(slots []*counts) float64 {
	var looked, stand float64
	for _, s := range slots {
		looked, stand = looked+s.looked, stand+s.stand
	}
	if stand == 0 {
		return 1
	}
	return looked / stand
}

// total adds up what the sketches that of returns have counted. The part of a key that a full sketch may have
// missed is added to high, by how much its count may be too low.
func total[K comparable](slots []*counts, of func(*counts) *sketch[K]) (sum map[K]*tally, high map[K]float64) {
	sum, high = make(map[K]*tally), make(map[K]float64)
	all := 0.0
	for _, s := range slots {
		k := of(s)
		missing := k.missing()
		all += missing
		for _, c := range k.lowest {
			t := sum[c.key]
			if t == nil {
				t = new(tally)
				sum[c.key] = t
			}
			t.add(&c.tally)
			high[c.key] -= missing
		}
	}
	for key := range high {
		high[key] += all
	}
	return sum, high
}
