package proxy

// A gateKind is a reason for a client to wait before the bridge reads from it again.
type gateKind uint8

const (
	gateSlowStart         gateKind = iota // the slow start of the upstream has no room: admission.go
	gateClient                            // the client's address is over its rate: bucket.go
	gateListener                          // the listener is over its rate: bucket.go
	gateTenantAddressRate                 // the client's address is over its rate in the tenant: bucket.go
	gateTenantRate                        // the tenant is over its rate: bucket.go
	gateTenantAddress                     // the client's address has as much under way as it may in the tenant: quota.go
	gateTenant                            // the tenant has as much under way as it may: quota.go
	gates
)

// tenantGates are the gates of a tenant and of its addresses, a bit for each.
const tenantGates = 1<<gates - 1<<gateTenantAddressRate

// A gate holds clients that wait. The bridge does not read from them meanwhile. Hosts take turns, and
// the clients of one host leave in the order they came. The owner of a gate locks it.
type gate struct {
	first, last *gateLine // hosts in the order of their turns
	of          map[*host]*gateLine
	free        *gateLine // one to use again, or nil
	n           int       // clients
}

// A gateLine is the clients of one host that wait at a gate.
type gateLine struct {
	host        *host
	first, last *ticket
	next        *gateLine
}

// A ticket is a client's place at a gate. It belongs to the gate while the client's
// ledger has the gate in shut. The gate posts it to the client's loop to admit the
// client. The tickets of tenants' gates are the membership's, so that a client which
// has another tenant waits at the gates of the old one no more.
type ticket struct {
	client waitingClient
	kind   gateKind
	left   flag  // the client does not wait at the gate any more; set on its loop
	host   *host // the client's, while it waits and as long as round counts it
	since  int64 // when the client began to wait; only admission uses it, like round
	round  int   // the round of admission in which the client was counted among those to come; 0 for none
	next   *ticket
	other  *ticket // the next of tickets
}

// tickets are those of one waitingClient, each of which is made when the client first waits at such a gate.
type tickets struct{ first *ticket }

// of returns the ticket of c, whose tickets these are, for gates of kind k.
func (l *tickets) of(k gateKind, c waitingClient) *ticket {
	for t := l.first; t != nil; t = t.other {
		if t.kind == k {
			return t
		}
	}
	l.first = &ticket{client: c, kind: k, other: l.first}
	return l.first
}

// leave makes the ticket for gates of kind k void. The client gets another one when it waits again.
func (l *tickets) leave(k gateKind) {
	for at := &l.first; *at != nil; at = &(*at).other {
		if t := *at; t.kind == k {
			t.left.set()
			*at = t.other
			return
		}
	}
}

// A waitingClient is a client as gates see it.
type waitingClient interface {
	// gone reports whether the connection has ended. Any goroutine.
	gone() bool
	// runOnLoop runs t on the client's loop. Any goroutine.
	runOnLoop(t *ticket)
	// close ends the connection. Any goroutine.
	close(reason error)
	// readOn reads from the client again after gate k has admitted it, unless something
	// else prevents that, such as the connection's end. On the client's loop.
	readOn(k gateKind)
}

// Run admits the client, on its loop. loop.Task.
func (t *ticket) Run() {
	if !t.left.get() {
		t.client.readOn(t.kind)
	}
}

// void reports whether the gate forgets t, because the client has ended or waits there no more. Any goroutine.
func (t *ticket) void() bool { return t.left.get() || t.client.gone() }

// put adds t, a client of h.
func (g *gate) put(t *ticket, h *host) {
	t.next, t.host = nil, h
	l := g.of[h]
	if l == nil {
		if l = g.free; l == nil {
			l = &gateLine{}
		}
		g.free = nil
		l.host = h
		if g.of == nil {
			g.of = make(map[*host]*gateLine)
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
func (g *gate) take(may func(*host) bool) *ticket {
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

func anyHost(*host) bool { return true }

// takeList does what take does, up to n times, and returns the clients as a list, linked by next.
func (g *gate) takeList(n int, may func(*host) bool) (first *ticket) {
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
	return g.takeList(g.n, func(h *host) bool { return g.of[h].first.since < at })
}

// runAll runs every ticket of a list. No lock is held.
func runAll(t *ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.client.runOnLoop(t)
		t = next
	}
}

// ticket returns the client's ticket for gates of kind k.
func (g *ledger) ticket(k gateKind) *ticket {
	if 1<<k&tenantGates != 0 {
		return g.member.tickets.of(k, g.member)
	}
	return g.tickets.of(k, g.front)
}

// waitAt makes the client wait at the gate at, which is of kind k. It returns false if the
// client waits at such a gate already.
func (g *ledger) waitAt(k gateKind, at *gate) bool {
	if g.shut&(1<<k) != 0 {
		return false
	}
	g.shut |= 1 << k
	at.put(g.ticket(k), g.host)
	return true
}
