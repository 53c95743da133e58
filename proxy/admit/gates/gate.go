package gates

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// A Gate holds clients that wait. The bridge does not read from them meanwhile. Hosts take turns, and
// the clients of one host leave in the order they came. The owner of a gate locks it.
type Gate struct {
	first, last *gateLine // hosts in the order of their turns
	of          map[crowd.Host]*gateLine
	free        *gateLine // one to use again, or nil
	n           int       // clients
}

// A gateLine is the clients of one host that wait at a gate.
type gateLine struct {
	host        crowd.Host
	first, last *Ticket
	next        *gateLine
}

// A Ticket is a client's place at the gates of one kind. It belongs to the gate while the client has the gate in shut.
// The gate posts it to the client's loop to admit the client.
type Ticket struct {
	client *Waiter
	kind   Reason
	left   atomic.Bool // the client does not wait with this ticket any more; set on its loop
	Turn   TurnGiver   // the gate's owner, if it gives the client a turn; nil for other gates
	Since  int64       // when the client began to wait; only slow start uses it
	next   *Ticket
	other  *Ticket // the client's next
}

// Run admits the client, on its loop. A client that does not use its turn passes it on. loop.Task.
func (t *Ticket) Run() {
	w, bit := t.client, uint16(1)<<t.kind
	if !t.void() {
		w.shut &^= bit
		w.turns |= bit
		w.conn.Resume()
		if w.turns&bit == 0 {
			return
		}
		w.turns &^= bit
	}
	if t.Turn != nil {
		t.Turn.Serve()
	}
}

// Client is the client with the ticket.
func (t *Ticket) Client() *Waiter { return t.client }

// CloseAll closes every client of a list because of err, and returns how many those are.
func (t *Ticket) CloseAll(err error) (n int) {
	for ; t != nil; t = t.next {
		t.client.conn.Close(err)
		n++
	}
	return n
}

// A TurnGiver is the owner of a gate where a turn that a client does not use goes to the next.
type TurnGiver interface {
	// Serve admits clients if there is room. Any goroutine.
	Serve()
}

// void reports whether the gate forgets t, because the client has ended or waits there no more. Any goroutine.
func (t *Ticket) void() bool { return t.left.Load() || t.client.Gone() }

// Waiting is how many clients wait, or have waited and are gone.
func (g *Gate) Waiting() int { return g.n }

// put adds t.
func (g *Gate) put(t *Ticket) {
	t.next = nil
	h := t.client.host
	l := g.of[h]
	if l == nil {
		if l = g.free; l == nil {
			l = &gateLine{}
		}
		g.free = nil
		l.host = h
		if g.of == nil {
			g.of = make(map[crowd.Host]*gateLine)
		}
		g.of[h] = l
		g.queue(l)
	}
	if l.first == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
	g.n++
}

// queue puts l behind the other lines.
func (g *Gate) queue(l *gateLine) {
	l.next = nil
	if g.first == nil {
		g.first = l
	} else {
		g.last.next = l
	}
	g.last = l
}

// take removes and returns the client whose turn it is among those of the hosts whose first client may pass, or nil
// if there is none. It forgets tickets that are void.
func (g *Gate) take(may func(*Ticket) bool) (t *Ticket) {
	for lines := len(g.of); lines > 0 && t == nil; lines-- {
		l := g.first
		g.first = l.next
		for l.first != nil && l.first.void() {
			g.pop(l)
		}
		if l.first != nil && may(l.first) {
			t = g.pop(l)
		}
		if l.first != nil {
			g.queue(l)
		} else {
			delete(g.of, l.host)
			*l = gateLine{}
			g.free = l
		}
	}
	return t
}

// pop removes and returns the first ticket of l.
func (g *Gate) pop(l *gateLine) *Ticket {
	t := l.first
	l.first, t.next = t.next, nil
	g.n--
	return t
}

// Remove removes up to n clients that are not gone, and returns them as a list, linked by next.
func (g *Gate) Remove(n int) *Ticket { return g.TakeList(n, func(*Ticket) bool { return true }) }

// TakeList does what take does, up to n times, and returns the clients as a list, linked by next.
func (g *Gate) TakeList(n int, may func(*Ticket) bool) (first *Ticket) {
	for end := &first; n > 0; n-- {
		t := g.take(may)
		if t == nil {
			break
		}
		*end = t
		end = &t.next
	}
	return first
}

// RunAll runs every ticket of a list. No lock is held.
func RunAll(t *Ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.client.conn.Post(t)
		t = next
	}
}

// A Waiter is a client as gates see it. It belongs to the client's loop.
type Waiter struct {
	conn    Conn       // constant
	host    crowd.Host // what takes turns; constant
	tickets *Ticket    // one for each kind of gate where the client has waited, linked by other
	shut    uint16     // the gates where the client waits, a bit for each Reason
	turns   uint16     // the gates that have admitted the client and whose turn it has not used yet
}

// MakeWaiter returns what waits for the client conn, of the host h.
func MakeWaiter(conn Conn, h crowd.Host) Waiter { return Waiter{conn: conn, host: h} }

// Conn is the client's connection.
func (w *Waiter) Conn() Conn { return w.conn }

// Host is that of the client.
func (w *Waiter) Host() crowd.Host { return w.host }

// Shut is the gates where the client waits, a bit for each Reason.
func (w *Waiter) Shut() uint16 { return w.shut }

// HasTurn reports whether a gate of this kind has admitted the client, which has not used its turn yet.
func (w *Waiter) HasTurn(k Reason) bool { return w.turns&(1<<k) != 0 }

// TakeTurns returns the gates that have admitted the client, a bit for each Reason, and forgets that they have.
func (w *Waiter) TakeTurns() (turns uint16) {
	turns, w.turns = w.turns, 0
	return turns
}

// Gone reports whether the connection has ended. Any goroutine.
func (w *Waiter) Gone() bool { return w.conn.Gone() }

// WaitAt makes the client wait at the gate at, for the reason k. It returns nil if the client waits at such a gate
// already.
func (w *Waiter) WaitAt(k Reason, at *Gate) *Ticket {
	if w.shut&(1<<k) != 0 {
		return nil
	}
	w.shut |= 1 << k
	t := w.tickets
	for t != nil && t.kind != k {
		t = t.other
	}
	if t == nil {
		t = &Ticket{client: w, kind: k, other: w.tickets}
		w.tickets = t
	}
	at.put(t)
	return t
}

// LeaveGates makes the client's tickets for these gates void: it waits there no more.
func (w *Waiter) LeaveGates(kinds uint16) {
	w.shut &^= kinds
	for at := &w.tickets; *at != nil; {
		t := *at
		if kinds&(1<<t.kind) == 0 {
			at = &t.other
			continue
		}
		t.left.Store(true)
		*at = t.other
	}
}
