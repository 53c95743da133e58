package proxy

// A gateKind is what a client may have to wait for beside its own Replies.
type gateKind uint8

const (
	gateSlowStart gateKind = iota // the slow start of its upstream has no room: admission.go
	gateClient                    // its address has had its rate: rate.go
	gateListener                  // the listener has
	gates
)

// A gate is where clients wait in the order they came. They are not read from while
// they do. It is locked by whoever has it.
type gate struct {
	first, last *ticket
	n           int
}

// A ticket is a client's place at a gate. While the client's ledger has the gate in
// shut, the ticket is the gate's; its turn is Run.
type ticket struct {
	s     gated
	kind  gateKind
	since int64 // when it began to wait, where that matters
	next  *ticket
}

// gated is a client, as gates see it.
type gated interface {
	// gone reports that the connection has ended. Any goroutine.
	gone() bool
	// turn runs t on the client's loop. Any goroutine.
	turn(t *ticket)
	// close ends the connection. Any goroutine.
	close(reason error)
	// admitted reads on, unless something else is in the way, after gate k has let the
	// client in. On the client's loop.
	admitted(k gateKind)
}

// Run is the client's turn, on its loop. loop.Task.
func (t *ticket) Run() {
	if !t.s.gone() {
		t.s.admitted(t.kind)
	}
}

// put makes t the last of those that wait.
func (g *gate) put(t *ticket) {
	t.next = nil
	if g.first == nil {
		g.first = t
	} else {
		g.last.next = t
	}
	g.last = t
	g.n++
}

// take takes up to n tickets, of clients that are still there, linked by next.
func (g *gate) take(n int) (first *ticket) {
	end := &first
	for n > 0 && g.first != nil {
		t := g.first
		g.first = t.next
		g.n--
		if t.s.gone() {
			continue
		}
		*end = t
		end = &t.next
		n--
	}
	*end = nil
	return first
}

// turn gives every ticket of a list its turn. No lock is held.
func turn(t *ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.s.turn(t)
		t = next
	}
}

// wait makes the client wait at gate k, whose tickets list has. It reports false when
// it does already.
func (g *ledger) wait(k gateKind, list *gate) bool {
	if g.shut&(1<<k) != 0 {
		return false
	}
	g.shut |= 1 << k
	list.put(&g.tickets[k])
	return true
}
