package chaos

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A book is the model: it records the fate of every Call. It is safe for concurrent use.
type book struct {
	t    testing.TB
	seed seed

	next     atomic.Uint32 // number of the latest Call
	sessions atomic.Uint32 // number of the latest NFSv4.1 session
	conns    atomic.Uint32 // number of the latest connection of a server
	lines    atomic.Uint32 // number of the latest connection of a client
	done     atomic.Int64  // Calls answered
	failed   atomic.Int64  // of those, with SYSTEM_ERR
	again    atomic.Int64  // transmissions beyond the first

	reversed           atomic.Int64 // Calls of servers
	reverseDone        atomic.Int64 // of those, answered by their clients
	reverseFailed      atomic.Int64 // with SYSTEM_ERR
	reverseUnavailable atomic.Int64 // with PROG_UNAVAIL: no client uses the connection
	reverseDelayed     atomic.Int64 // with NFS4ERR_DELAY: the client is away

	onLanes atomic.Int64 // COMPOUNDs that came on the lane of their client

	slowest atomic.Int64 // longest wait on a live connection, in nanoseconds
	broken  atomic.Bool

	mu     sync.Mutex // guards the fields below
	calls  map[uint32]*entry
	ways   map[uint32]*way // of the connections of clients that are open, by their numbers
	wrongs int
	acts   []string // the latest, on the bridge
}

// An entry is one Call.
type entry struct {
	who      string // made it
	kind     kind
	sum      uint32 // of the message behind its XID
	sent     int    // times a client sent it
	line     uint32 // on which connection last; 0 if it is not known
	served   int    // times it came to a server
	executed int    // times a server executed it
	moves    int    // times the client sent it from another port than before
	xids     []come // how it came there to be executed, if it is harmful
	written  int    // times a server sent all octets of its Reply
	refused  bool   // a Responder answered RDMA_ERROR
	answered bool
	replies  []string // the latest, of any server
}

// A come is a Call coming to a server.
type come struct {
	xid uint32
	at  time.Time
}

func newBook(t testing.TB, s seed) *book {
	b := &book{t: t, seed: s, calls: make(map[uint32]*entry), ways: make(map[uint32]*way)}
	b.next.Store(s.dice("numbers", 0).Uint32())
	return b
}

// wrong reports a broken rule.
func (b *book) wrong(format string, args ...any) {
	b.broken.Store(true)
	b.mu.Lock()
	b.wrongs++
	n, acts := b.wrongs, strings.Join(b.acts, ", ")
	b.mu.Unlock()
	if n <= 20 {
		b.t.Errorf("%s: %s: %s", b.seed, time.Now().Format("05.000"), fmt.Sprintf(format, args...))
	}
	if n == 1 && acts != "" {
		b.t.Logf("before: %s", acts)
	}
}

// begin notes a new Call of who.
func (b *book) begin(who string, k kind, id uint32, m []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[id] = &entry{who: who, kind: k, sum: proxytest.Checksum(m[4:])}
}

// name describes the Call with the number id.
func (b *book) name(id uint32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.calls[id]; e != nil {
		return fmt.Sprintf("call %#x (%v) of %s", id, e.kind, e.who)
	}
	return fmt.Sprintf("call %#x", id)
}

// transmit notes that the Call is about to be sent to the bridge.
func (b *book) transmit(id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.calls[id]
	if e.sent++; e.sent > 1 {
		b.again.Add(1)
	}
}

// moved notes that the Call is about to be sent from another port than before. A server without a bridge would take it
// for another Call.
func (b *book) moved(id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[id].moves++
}

// unsent takes transmit back.
func (b *book) unsent(id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[id].sent--
}

// end notes that the Call was answered, rightly. Calls that may be executed twice
// are forgotten.
func (b *book) end(id uint32, waited time.Duration) {
	b.done.Add(1)
	for w := int64(waited); ; {
		most := b.slowest.Load()
		if w <= most || b.slowest.CompareAndSwap(most, w) {
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.calls[id]
	if e.answered = true; !e.kind.harmful() {
		delete(b.calls, id)
	}
}

// refuse notes that the Call is answered with RDMA_ERROR.
func (b *book) refuse(id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.calls[id]; e != nil {
		e.refused = true
	}
}

// replying notes how a server answers the Call.
func (b *book) replying(id uint32, format string, args ...any) {
	how := time.Now().Format("05.000 ") + fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.calls[id]; e != nil {
		e.replies = append(e.replies[max(0, len(e.replies)-7):], how)
	}
}

// history tells what the book knows of the Call.
func (b *book) history(id uint32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.calls[id]
	if e == nil {
		return "nothing is known of it"
	}
	return fmt.Sprintf("sent %d times, served %d, written %d, refused: %v, replies: %s", e.sent, e.served, e.written, e.refused, strings.Join(e.replies, "; "))
}

// write notes that a server is about to send its whole Reply to the Call: all octets of all
// chunks have been written.
func (b *book) write(id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.calls[id]; e != nil {
		e.written++
	}
}

// match returns the Call of who that the record m answers, and its XID. It is wrong if there is none.
func (b *book) match(who string, all map[uint32]*outstanding, m []byte) (xid uint32, o *outstanding) {
	if len(m) < 8 {
		b.wrong("%s: a record of %d octets", who, len(m))
		return 0, nil
	}
	xid = binary.BigEndian.Uint32(m)
	if o = all[xid]; o == nil {
		b.wrong("%s: a Reply to XID %#x, which is answered or never was", who, xid)
	}
	return xid, o
}

// difference describes where the Reply m is not what was to be.
func difference(m, want []byte) string {
	n := min(len(m), len(want))
	first, last, differ := -1, 0, 0
	for i := range n {
		if m[i] != want[i] {
			if differ++; first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return fmt.Sprintf("the first %d are right, of %d", n, len(want))
	}
	from, to := max(0, first-4), min(n, first+36)
	return fmt.Sprintf("of %d octets %d differ, from %d to %d: at %d there is %x, and should be %x", len(want), differ, first, last, from, m[from:to], want[from:to])
}

// judge checks the Reply m to the Call o of who. It reports whether the Call failed, with
// SYSTEM_ERR.
func (b *book) judge(who string, o *outstanding, m []byte) (failed bool) {
	other, isRemove := executedFor(m)
	switch {
	case bytes.Equal(m, replyTo(o.m)):
		b.mu.Lock()
		e := b.calls[o.id]
		none := e != nil && e.written == 0
		b.mu.Unlock()
		if none {
			b.wrong("%s: call %#x (%v) was answered with %d octets, and no server has written all of them for it", who, o.id, o.kind, len(m))
		}
		return false
	case isError(m) && b.refusable(o.id):
		return true
	case o.kind == remove && isRemove && other != o.id:
		b.wrong("%s: %s was answered from the execution of %s", who, b.name(o.id), b.name(other))
	default:
		b.wrong("%s: call %#x (%v) was answered with %d octets that were not written for it: %s; %s", who, o.id, o.kind, len(m), difference(m, replyTo(o.m)), b.history(o.id))
	}
	return false
}

// refusable reports whether SYSTEM_ERR may be the answer to the Call.
func (b *book) refusable(id uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.calls[id]
	return e != nil && e.refused && e.kind != echoGSS
}

// serve notes that the Call has come to a server, and checks it.
func (b *book) serve(c *oncrpc.Call, k kind, id uint32) {
	sum := proxytest.Checksum(c.Message[4:])
	b.mu.Lock()
	e := b.calls[id]
	var wrong string
	if e != nil {
		e.served++
		switch {
		case sum != e.sum:
			wrong = fmt.Sprintf("call %#x (%v) of %d octets was changed on its way to the server", id, k, len(c.Message))
		case e.kind.harmful() && e.served > e.sent:
			wrong = fmt.Sprintf("call %#x (%v), which must not be repeated, was sent to the bridge %d times and by it %d times", id, k, e.sent, e.served)
		}
	} else if k.harmful() {
		wrong = fmt.Sprintf("call %#x (%v) was never made", id, k)
	}
	b.mu.Unlock()
	if wrong != "" {
		b.wrong("%s", wrong)
	}
}

// execute notes that a server executes the Call.
func (b *book) execute(id, xid uint32, cached bool) {
	b.mu.Lock()
	e := b.calls[id]
	n, most, k, how := 0, 1, kind(0), ""
	if e != nil {
		e.executed++
		n, most, k = e.executed, 1+e.moves, e.kind
		if k.harmful() && cached {
			e.xids = append(e.xids, come{xid: xid, at: time.Now()})
			for _, c := range e.xids {
				how += fmt.Sprintf(" %#x %v ago", c.xid, time.Since(c.at).Round(time.Millisecond))
			}
		}
	}
	b.mu.Unlock()
	if n > most && k.harmful() && cached {
		b.wrong("call %#x (%v), sent from %d ports, was executed %d times by a server with a duplicate request cache: it came under other XIDs:%s", id, k, most, n, how)
	}
}

// abandon notes that the client no longer waits for the Calls, which may still come to
// a server. The book forgets those that may be repeated.
func (b *book) abandon(all []*outstanding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range all {
		if !o.kind.harmful() {
			delete(b.calls, o.id)
		}
	}
}
