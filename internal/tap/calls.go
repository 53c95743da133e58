package tap

import (
	"encoding/binary"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

const (
	// mostCalls bounds the Calls that a capture follows.
	mostCalls = 1 << 16
	// mostFree bounds the followed that are kept for the next Calls, and mostMemory the memory that each
	// of them keeps.
	mostFree, mostMemory = 256, 64 << 10
)

// calls are the Calls that a capture follows: those that were read and are not over.
type calls struct {
	room    int // octets of messages that may be held back
	byID    map[uint64]*followed
	pending int         // those without a Reply
	held    int         // octets of messages that are held back
	oldest  *followed   // the first of them in the order in which they were read
	newest  *followed   // the last
	free    []*followed // to be used again
	dropped [2]uint64   // messages that there was no room for, by leg
}

// A followed is a Call that a capture follows.
type followed struct {
	id                          uint64
	program, version, procedure uint32
	protection                  oncrpc.Protection
	clientXID, upstreamXID      uint32
	read, sent, replied         time.Time // sent is when it was sent first
	sends                       int
	upstream                    bool // a Reply has come from the upstream
	fate                        fate

	kept   []kept // messages that are held back
	memory []byte // their octets

	prev, next *followed
}

// A kept is a message that is held back. Its octets are in the memory of its Call.
type kept struct {
	event
	from, size int
}

func (s *calls) init() { s.byID = make(map[uint64]*followed) }

// follow notes what e, a message, says of its Call. It returns nil if the Call is not followed: it was
// read before the capture began or after it was closed, or its message was dropped.
func (s *calls) follow(e *event, closed time.Time) *followed {
	f := s.byID[e.call]
	if f == nil {
		if e.reply || e.out || !closed.IsZero() && e.at.After(closed) {
			return nil
		}
		if len(s.byID) >= mostCalls {
			s.drop(s.oldest) // its end was dropped, or it hangs
		}
		f = s.add(e)
	}
	var xid uint32
	if len(e.octets) >= 4 {
		xid = binary.BigEndian.Uint32(e.octets)
	}
	switch {
	case !e.reply && !e.out:
		f.clientXID = xid
		var h oncrpc.Call
		f.protection = oncrpc.ProtectUnknown
		if oncrpc.ParseCall(e.octets, &h) == nil {
			f.protection = h.Protection
		}
	case !e.reply:
		f.upstreamXID = xid
		if f.sends++; f.sends == 1 {
			f.sent = e.at
		}
	case !e.out:
		if f.sends == 0 {
			return nil // the message of the Call was dropped
		}
		f.replied, f.upstream = e.at, true
	default:
		if !f.fate.over {
			s.pending--
		}
		f.fate.over = true
		f.fate.took = e.at.Sub(f.read)
		f.fate.judge(e.octets, f)
	}
	return f
}

func (s *calls) add(e *event) *followed {
	var f *followed
	if n := len(s.free); n > 0 {
		f, s.free = s.free[n-1], s.free[:n-1]
	} else {
		f = new(followed)
	}
	f.id, f.program, f.version, f.procedure, f.read = e.call, e.program, e.version, e.procedure, e.at
	if f.prev = s.newest; f.prev != nil {
		f.prev.next = f
	} else {
		s.oldest = f
	}
	s.newest = f
	s.byID[f.id] = f
	s.pending++
	return f
}

// take ends following a Call, and returns it if it was followed. The caller recycles it.
func (s *calls) take(id uint64) *followed {
	f := s.byID[id]
	if f == nil {
		return nil
	}
	delete(s.byID, id)
	if !f.fate.over {
		s.pending--
	}
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		s.oldest = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		s.newest = f.prev
	}
	s.held -= len(f.memory)
	return f
}

// recycle keeps f for another Call.
func (s *calls) recycle(f *followed) {
	if len(s.free) >= mostFree || cap(f.memory) > mostMemory {
		return
	}
	clear(f.kept)
	*f = followed{kept: f.kept[:0], memory: f.memory[:0], fate: fate{names: f.fate.names[:0]}}
	s.free = append(s.free, f)
}

// drop ends following f, whose messages are lost.
func (s *calls) drop(f *followed) {
	for i := range f.kept {
		s.dropped[f.kept[i].conn.Leg]++
	}
	s.recycle(s.take(f.id))
}

// keep holds e, a message of f, back until f is over. The oldest Calls give way to it.
func (s *calls) keep(f *followed, e *event) {
	for s.held+len(e.octets) > s.room && s.oldest != f {
		s.drop(s.oldest)
	}
	if s.held+len(e.octets) > s.room {
		s.dropped[e.conn.Leg]++
		return
	}
	k := kept{*e, len(f.memory), len(e.octets)}
	k.octets = nil
	f.memory = append(f.memory, e.octets...)
	f.kept = append(f.kept, k)
	s.held += len(e.octets)
}
