package tap

import (
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// An event is what a loop tells a capture: a message, the end of a Call, or the end of a connection.
type event struct {
	kind eventKind
	call uint64
	conn *observe.TapConn
	at   time.Time

	// Of a message.
	out, reply  bool
	reverse     bool
	octets      []byte // what is captured of it, in the memory of the ring
	length      int    // octets of the whole message
	data        int    // octets of data in it that direct placement moves, or would move
	rdma        observe.TapRDMA
	granted     int
	outstanding int
	program     uint32
	version     uint32
	procedure   uint32

	text     string   // result of a Call; why a connection has ended
	status   string   // class of the Reply of a Call that is over; "" for none
	failed   bool     // of a Call that is over: it failed
	comments []string // of a message, once the capture has them
}

type eventKind uint8

const (
	eventMessage eventKind = iota
	eventOver              // a Call is over
	eventEnded             // a connection has ended
)

// A ring brings events from one loop to the goroutine of a capture. put is for the loop, peek and pop
// for that goroutine, and neither waits for the other.
type ring struct {
	events []event
	memory []byte // holds the octets of the events

	// The loop's.
	used   uint64 // octets of memory used so far, those skipped at its end included
	posted atomic.Uint64

	_ [64]byte // the loop and the goroutine do not share a cache line

	// The goroutine's.
	popped atomic.Uint64 // events
	freed  atomic.Uint64 // octets of memory, counted as used is

	_ [64]byte

	ends []uint64 // for each event, used after it

	dropped [2]atomic.Uint64 // messages that did not fit, by their leg
}

func newRing(octets int) *ring {
	n := max(256, octets/1024)
	return &ring{events: make([]event, n), ends: make([]uint64, n), memory: make([]byte, octets)}
}

// room reports whether another event with n octets fits, and where its octets begin. Messages leave some
// events to the ends of Calls, without which a capture would wait for Calls that are over.
func (r *ring) room(kind eventKind, n int) (at uint64, ok bool) {
	most := len(r.events)
	if kind == eventMessage {
		most -= most / 4
	}
	if r.posted.Load()-r.popped.Load() >= uint64(most) {
		return 0, false
	}
	size := uint64(len(r.memory))
	at = r.used
	if left := size - at%size; uint64(n) > left {
		at += left // octets of an event are in one piece
	}
	return at, at+uint64(n)-r.freed.Load() <= size
}

// put adds e with the first n octets of parts. It reports false if there is no room.
func (r *ring) put(e *event, parts [][]byte, n int) bool {
	at, ok := r.room(e.kind, n)
	if !ok {
		return false
	}
	size := uint64(len(r.memory))
	from := at % size
	b := r.memory[from : from+uint64(n) : from+uint64(n)]
	to := b
	for _, p := range parts {
		to = to[copy(to, p):]
	}
	e.octets = b
	next := r.posted.Load()
	i := next % uint64(len(r.events))
	r.events[i] = *e
	r.used = at + uint64(n)
	r.ends[i] = r.used
	r.posted.Store(next + 1)
	return true
}

// peek returns the oldest event, or nil. It is valid until pop.
func (r *ring) peek() *event {
	n := r.popped.Load()
	if n == r.posted.Load() {
		return nil
	}
	return &r.events[n%uint64(len(r.events))]
}

// pop removes the event that peek has returned.
func (r *ring) pop() {
	n := r.popped.Load()
	i := n % uint64(len(r.events))
	r.freed.Store(r.ends[i])
	r.events[i] = event{}
	r.popped.Store(n + 1)
}

// full reports whether more than half of the ring is used. For the loop.
func (r *ring) full() bool {
	return r.used-r.freed.Load() > uint64(len(r.memory)/2) || r.posted.Load()-r.popped.Load() > uint64(len(r.events)/2)
}
