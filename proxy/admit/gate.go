package admit

import "sync/atomic"

// A gate holds clients that wait. The bridge does not read from them meanwhile. Hosts take turns, and
// the clients of one host leave in the order they came. The owner of a gate locks it.
type gate struct {
	first, last *gateLine // hosts in the order of their turns
	of          map[*Host]*gateLine
	free        *gateLine // one to use again, or nil
	n           int       // clients
}

// A gateLine is the clients of one host that wait at a gate.
type gateLine struct {
	host        *Host
	first, last *ticket
	next        *gateLine
}

// A ticket is a client's place at the gates of one kind. It belongs to the gate while the client has the gate in shut.
// The gate posts it to the client's loop to admit the client.
type ticket struct {
	client *waiter
	kind   Reason
	left   atomic.Bool // the client does not wait with this ticket any more; set on its loop
	turn   turnGiver   // the gate's owner, if it gives the client a turn; nil for other gates
	since  int64       // when the client began to wait; only slow start uses it
	next   *ticket
	other  *ticket // the client's next
}

// Run admits the client, on its loop. A client that does not use its turn passes it on. loop.Task.
func (t *ticket) Run() {
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
	if t.turn != nil {
		t.turn.serve()
	}
}

// A turnGiver is the owner of a gate where a turn that a client does not use goes to the next.
type turnGiver interface {
	// serve admits clients if there is room. Any goroutine.
	serve()
}

// void reports whether the gate forgets t, because the client has ended or waits there no more. Any goroutine.
func (t *ticket) void() bool { return t.left.Load() || t.client.Gone() }

// put adds t.
func (g *gate) put(t *ticket) {
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
			g.of = make(map[*Host]*gateLine)
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
func (g *gate) queue(l *gateLine) {
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
func (g *gate) take(may func(*ticket) bool) (t *ticket) {
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
func (g *gate) pop(l *gateLine) *ticket {
	t := l.first
	l.first, t.next = t.next, nil
	g.n--
	return t
}

// remove removes up to n clients that are not gone, and returns them as a list, linked by next.
func (g *gate) remove(n int) *ticket { return g.takeList(n, func(*ticket) bool { return true }) }

// takeList does what take does, up to n times, and returns the clients as a list, linked by next.
func (g *gate) takeList(n int, may func(*ticket) bool) (first *ticket) {
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

// runAll runs every ticket of a list. No lock is held.
func runAll(t *ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.client.conn.Post(t)
		t = next
	}
}

// A waiter is a client as gates see it. It belongs to the client's loop.
type waiter struct {
	conn    Conn    // constant
	host    *Host   // what shares are divided among; constant until the client has gone
	tickets *ticket // one for each kind of gate where the client has waited, linked by other
	shut    uint16  // the gates where the client waits, a bit for each Reason
	turns   uint16  // the gates that have admitted the client and whose turn it has not used yet
}

// Gone reports whether the connection has ended. Any goroutine.
func (w *waiter) Gone() bool { return w.conn.Gone() }

// waitAt makes the client wait at the gate at, for the reason k. It returns nil if the client waits at such a gate
// already.
func (w *waiter) waitAt(k Reason, at *gate) *ticket {
	if w.shut&(1<<k) != 0 {
		return nil
	}
	w.shut |= 1 << k
	t := w.tickets
	for t != nil && t.kind != k {
		t = t.other
	}
	if t == nil {
		t = &ticket{client: w, kind: k, other: w.tickets}
		w.tickets = t
	}
	at.put(t)
	return t
}

// leaveGates makes the client's tickets for these gates void: it waits there no more.
func (w *waiter) leaveGates(kinds uint16) {
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
