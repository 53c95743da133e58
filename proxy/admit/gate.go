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

// A ticket is a client's place at a gate. It belongs to the gate while the client
// has the gate in shut. The gate posts it to the client's loop to admit the
// client. The tickets of tenants' gates are the membership's, so that a client which
// has another tenant waits at the gates of the old one no more.
type ticket struct {
	holder ticketHolder
	kind   Reason
	left   atomic.Bool // the client does not wait at the gate any more; set on its loop
	host   *Host       // the client's, while it waits and as long as round counts it
	since  int64       // when the client began to wait; only slow start uses it, like round
	round  int         // the round of slow start in which the client was counted among those to come; 0 for none
	next   *ticket
	other  *ticket // the next of tickets
}

// tickets are those of one ticketHolder, each of which is made when the client first waits at such a gate.
type tickets struct{ first *ticket }

// of returns the ticket of h, whose tickets these are, for gates of kind k.
func (l *tickets) of(k Reason, h ticketHolder) *ticket {
	for t := l.first; t != nil; t = t.other {
		if t.kind == k {
			return t
		}
	}
	l.first = &ticket{holder: h, kind: k, other: l.first}
	return l.first
}

// leave makes the ticket for gates of kind k void. The client gets another one when it waits again.
func (l *tickets) leave(k Reason) {
	for at := &l.first; *at != nil; at = &(*at).other {
		if t := *at; t.kind == k {
			t.left.Store(true)
			*at = t.other
			return
		}
	}
}

// A ticketHolder is a waiter, or a membership.
type ticketHolder interface {
	// connection is the client's.
	connection() Conn
	// Gone reports whether the client waits at no gate any more. Any goroutine.
	Gone() bool
	// admitted notes that gate k has admitted the client, and reads from it again unless something else
	// prevents that, such as the connection's end. On the client's loop.
	admitted(k Reason)
}

// Run admits the client, on its loop. loop.Task.
func (t *ticket) Run() {
	if !t.left.Load() {
		t.holder.admitted(t.kind)
	}
}

// void reports whether the gate forgets t, because the client has ended or waits there no more. Any goroutine.
func (t *ticket) void() bool { return t.left.Load() || t.holder.Gone() }

// put adds t, a client of h.
func (g *gate) put(t *ticket, h *Host) {
	t.next, t.host = nil, h
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

// take removes and returns the client whose turn it is among those of the hosts that may pass, or nil
// if there is none. It forgets tickets that are void.
func (g *gate) take(may func(*Host) bool) *ticket {
	for lines := len(g.of); lines > 0; lines-- {
		l := g.first
		if g.first = l.next; g.first == nil {
			g.last = nil
		}
		for l.first != nil && l.first.void() {
			g.pop(l)
		}
		var t *ticket
		if l.first != nil && may(l.host) {
			t = g.pop(l)
		}
		if l.first != nil {
			g.queue(l)
		} else {
			delete(g.of, l.host)
			*l = gateLine{}
			g.free = l
		}
		if t != nil {
			return t
		}
	}
	return nil
}

// pop removes and returns the first ticket of l.
func (g *gate) pop(l *gateLine) *ticket {
	t := l.first
	l.first, t.next = t.next, nil
	g.n--
	return t
}

// remove removes up to n clients that are not gone, and returns them as a list, linked by next.
func (g *gate) remove(n int) *ticket { return g.takeList(n, anyHost) }

func anyHost(*Host) bool { return true }

// takeList does what take does, up to n times, and returns the clients as a list, linked by next.
func (g *gate) takeList(n int, may func(*Host) bool) (first *ticket) {
	end := &first
	for ; n > 0; n-- {
		t := g.take(may)
		if t == nil {
			break
		}
		*end = t
		end = &t.next
	}
	return first
}

// since removes the clients that have waited since before at, and returns them as a list, linked by
// next. It forgets clients that are gone.
func (g *gate) since(at int64) *ticket {
	return g.takeList(g.n, func(h *Host) bool { return g.of[h].first.since < at })
}

// runAll runs every ticket of a list. No lock is held.
func runAll(t *ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.holder.connection().Post(t)
		t = next
	}
}

// A waiter is a client as gates see it. It belongs to the client's loop.
type waiter struct {
	conn    Conn    // constant
	host    *Host   // what shares are divided among; constant until the client has gone
	tickets tickets // for gates that are not those of a tenant
	shut    uint16  // the gates where the client waits, a bit for each Reason
}

// A place is a client that may wait at gates: a waiter, or its membership for those of a tenant.
type place interface {
	// waitAt makes the client wait at the gate at, for the reason k. It returns false if the client waits at such a
	// gate already.
	waitAt(k Reason, at *gate) bool
}

// waitAt is part of place.
func (w *waiter) waitAt(k Reason, at *gate) bool { return w.queue(k, at, &w.tickets, w) }

// queue puts the ticket of h for gates of kind k, one of all, behind the others at the gate at, unless the client waits
// at such a gate already.
func (w *waiter) queue(k Reason, at *gate, all *tickets, h ticketHolder) bool {
	if w.shut&(1<<k) != 0 {
		return false
	}
	w.shut |= 1 << k
	at.put(all.of(k, h), w.host)
	return true
}

// connection is part of ticketHolder.
func (w *waiter) connection() Conn { return w.conn }

// Gone is part of ticketHolder.
func (w *waiter) Gone() bool { return w.conn.Gone() }

// admitted is part of ticketHolder.
func (w *waiter) admitted(k Reason) {
	if w.Gone() {
		return
	}
	w.shut &^= 1 << k
	w.conn.Resume()
}
