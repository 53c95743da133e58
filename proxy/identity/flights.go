package identity

import (
	"hash/maphash"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Calls in flight
//
// A client sends a Call again when it has waited too long for the Reply, on the same connection
// or, when it has lost that, on the next one. A server that is still executing the first
// transmission drops the second without an answer, if it has a duplicate request cache, and the
// credit is lost with it. Otherwise it executes the Call twice. So the proxy remembers each Call
// that does harm when repeated from the time it is read until its Reply has come or it has
// failed. It does not remember Calls that only read, because reading twice is harmless.
//
// A Call repeats one in flight if both are the same to the last octet, apart from the stamp of
// AUTH_SYS and the verifier, and come from the same origin for the same upstream: from one address
// and port over TCP, from one address over RDMA (origin.go). 64 bits of a hash find the Call in
// flight; after that the octets count. In particular, the user is the same.
//
//   - A repeat on the same TCP connection is dropped: the one Reply answers both.
//   - A repeat on another connection, or on the same RDMA connection, where it has a credit until it is
//     answered, is held. It gets a copy of the Reply. If there is no Reply,
//     because the connection to the upstream or the first client connection was lost, the
//     repeat is sent in its own right, with the same XID, as if it had come at that time.
//   - A COMPOUND of NFSv4.1 that begins with SEQUENCE is not held: the server executes it once,
//     whatever connection it comes on. It is sent at once, on the pinned connection of the
//     client connection that it came on. The pinned connection that carries the first transmission
//     may be dead.
//
// The proxy closes no connection because of a repeat. The second connection may be the client's
// next one. The first connection may still look alive then: the proxy does not see its end while
// its loop is busy, and a proxy that names the client's port in a header may have lost the client
// and not closed its connection yet. Over RDMA the second may as well be the connection of another
// client at the same address that chose the same XID for the same Call as the same user. Nothing
// tells these two cases apart, and nothing would tell a server on RDMA. Copies of the Reply suit both.

const (
	// flightLists is how many lists there are. Where 16,000 Calls are in flight, a list has
	// one of them.
	flightLists = 1 << 14
	// longestSearch bounds how many Calls a search looks at, in a list and among the repeats
	// of a Call. Chance does not make a list as long as that, and a client that does gains
	// nothing but repeats that are not found.
	longestSearch = 64
)

// Flights are the Calls in flight that do harm when repeated. They are safe for concurrent use.
type Flights struct {
	seed  maphash.Seed
	lists []flightList // flightLists
}

// A flightList has the Calls whose tags are the same in their low bits.
type flightList struct {
	mu    sync.Mutex // guards first and the fields that link Flights; a leaf
	first *Flight
}

// A Flight is a Call's place among the Calls in flight. The Call holds it by value. The lock of the list guards it,
// apart from Owner and tag. The zero value is that of a Call which has not come yet. When the Call is over, the next one
// may use it as it is.
type Flight struct {
	Owner Transmitted // the Call; constant after Enter, as is tag

	tag        uint64  // a hash of the XID, the upstream and the origin
	prev, next *Flight // neighbours in the list; next also links the repeats of a Call
	repeats    *Flight // the first of the Calls that repeat this one and are held, the latest first
	original   *Flight // the Call that this one repeats while it is held
}

// A Transmitted is a Call that may be in flight.
type Transmitted interface {
	// Transmission says what was sent. It is called by any goroutine while the Call is in flight or held. So long, what
	// it returns does not change, nor does the message behind the XID.
	Transmission() Transmission
	// Hold notes that another Call goes first. It is called before another goroutine may decide about the Call, and calls
	// nothing of this package.
	Hold()
}

// A Transmission is what makes a Call the same as another one, or not.
type Transmission struct {
	Header   *oncrpc.Call // with the message and the client's XID
	Upstream uint32       // a number of it
	Origin   Origin
	Client   any  // the client's connection, a pointer
	Credited bool // the client has a credit for each transmission until that is answered: it is RDMA's
	Session  bool // it begins with SEQUENCE: the server executes it once
}

// NewFlights returns Flights without Calls.
func NewFlights() *Flights {
	return &Flights{seed: maphash.MakeSeed(), lists: make([]flightList, flightLists)}
}

// An Entry is what Enter has found out about a Call.
type Entry uint8

const (
	// Alone is a Call that repeats none. It is remembered, and is to be sent.
	Alone Entry = iota
	// Dropped is a Call that repeats one of the same TCP connection. It is to be dropped.
	Dropped
	// Held is a Call that repeats one otherwise. It is held.
	Held
)

// Enter remembers the Call o, whose Flight is f and which has this XID at the upstream, or finds out that it is a repeat. If it is held, it
// belongs to the Call that it repeats from then on.
func (t *Flights) Enter(f *Flight, o Transmitted, xid uint32) Entry {
	s := o.Transmission()
	f.Owner, f.tag = o, t.tag(xid, &s)
	l := t.list(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	first, client := l.find(f, &s)
	if first == nil || client != s.Client && s.Session {
		l.push(f)
		return Alone
	}
	if !s.Credited && (client == s.Client || first.isRepeatedBy(s.Client)) {
		return Dropped
	}
	o.Hold()
	f.original = first
	f.next, first.repeats = first.repeats, f
	return Held
}

// isRepeatedBy reports whether one of the Calls that repeat f is of this client's connection.
func (f *Flight) isRepeatedBy(client any) bool {
	n := 0
	for r := f.repeats; r != nil && n < longestSearch; r, n = r.next, n+1 {
		if r.Owner.Transmission().Client == client {
			return true
		}
	}
	return false
}

// tag hashes the XID at the upstream, the upstream and the origin of s. The XID depends on the arguments.
func (t *Flights) tag(xid uint32, s *Transmission) uint64 {
	return maphash.Comparable(t.seed, struct {
		xid, upstream uint32
		origin        Origin
	}{xid, s.Upstream, s.Origin})
}

func (t *Flights) list(f *Flight) *flightList { return &t.lists[f.tag%flightLists] }

// Leave forgets f, which is not in flight any more, and returns the first of the Calls that repeat it. They belong to
// the caller: Unlink.
func (t *Flights) Leave(f *Flight) (repeats *Flight) {
	l := t.list(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(f)
	repeats, f.repeats = f.repeats, nil
	for r := repeats; r != nil; r = r.next {
		r.original = nil
	}
	return repeats
}

// LeaveAlone does what Leave does if no Call repeats f, and reports whether it has.
func (t *Flights) LeaveAlone(f *Flight) bool {
	l := t.list(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.repeats != nil {
		return false
	}
	l.remove(f)
	return true
}

// Unlink takes f, which Leave or Unlink has returned, from the list of repeats, and returns the next one.
func (f *Flight) Unlink() (next *Flight) {
	next, f.next = f.next, nil
	return next
}

// Replace puts the latest repeat of f in the place of f, which has ended without a Reply. The
// repeat is in flight from now on, and has the other repeats. Replace returns nil if there is none.
func (t *Flights) Replace(f *Flight) *Flight {
	l := t.list(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(f)
	next := f.repeats
	if next == nil {
		return nil
	}
	next.repeats, f.repeats = next.next, nil
	next.original, next.next = nil, nil
	for r := next.repeats; r != nil; r = r.next {
		r.original = next
	}
	l.push(next)
	return next
}

// Withdraw takes f, which is held, from the Call that it repeats, because its client has gone. It
// reports false if that Call has ended meanwhile and somebody else decides about f.
func (t *Flights) Withdraw(f *Flight) bool {
	l := t.list(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	first := f.original
	if first == nil {
		return false
	}
	f.original = nil
	at := &first.repeats
	for *at != f {
		at = &(*at).next
	}
	*at, f.next = f.next, nil
	return true
}

// find returns the Call in flight that f, with the transmission s, repeats, and its client; or nil. l.mu is held.
func (l *flightList) find(f *Flight, s *Transmission) (first *Flight, client any) {
	n := 0
	for o := l.first; o != nil && n < longestSearch; o, n = o.next, n+1 {
		if o.tag != f.tag {
			continue
		}
		if x := o.Owner.Transmission(); x.isSame(s) {
			return o, x.Client
		}
	}
	return nil, nil
}

// push adds f. l.mu is held.
func (l *flightList) push(f *Flight) {
	f.prev, f.next = nil, l.first
	if l.first != nil {
		l.first.prev = f
	}
	l.first = f
}

// remove removes f. l.mu is held.
func (l *flightList) remove(f *Flight) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
}

// isSame reports whether s and o are one Call that was sent twice.
func (s *Transmission) isSame(o *Transmission) bool {
	return s.Upstream == o.Upstream && s.Origin == o.Origin && sameCall(s.Header, o.Header)
}
