package proxy

// A gateKind is what a client may have to wait for beside its own Replies.
type gateKind uint8

const (
	gateRamp     gateKind = iota // its upstream has answered little yet: ramp.go
	gateClient                   // its address has had its rate: rate.go
	gateListener                 // the listener has
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
	s    gated
	kind gateKind
	next *ticket
}

// gated is a client, as gates see it.
type gated interface {
	session
	// gone reports that the connection has ended. Any goroutine.
	gone() bool
	// admit reads on, unless something else is in the way. On the client's loop.
	admit()
}

// Run is the client's turn, on its loop. tcpframe.Task.
func (t *ticket) Run() {
	g, _ := t.s.books()
	g.shut &^= 1 << t.kind
	if !t.s.gone() {
		t.s.admit()
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

// turn posts the turn of every ticket of a list. No lock is held: a loop may run it
// at once.
func turn(t *ticket) {
	for t != nil {
		next := t.next
		t.next = nil
		t.s.home().Post(t)
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
