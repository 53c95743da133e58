package proxy

// A gateKind is a reason for a client to wait before the bridge reads from it again.
type gateKind uint8

const (
	gateSlowStart gateKind = iota // the slow start of the upstream has no room: admission.go
	gateClient                    // the client's address is over its rate: bucket.go
	gateListener                  // the listener is over its rate: bucket.go
	gates
)

// A gate holds clients that wait, in the order they came. The bridge does not read from
// them meanwhile. The owner of a gate locks it.
type gate struct {
	first, last *ticket
	n           int
}

// A ticket is a client's place at a gate. It belongs to the gate while the client's
// ledger has the gate in shut. The gate posts it to the client's loop to admit the
// client.
type ticket struct {
	client waitingClient
	kind   gateKind
	since  int64 // when the client began to wait; only admission uses it, like round
	round  int   // the round of admission in which the client was counted among those to come; 0 for none
	next   *ticket
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
	// else prevents that. On the client's loop.
	readOn(k gateKind)
}

// Run admits the client, on its loop. loop.Task.
func (t *ticket) Run() {
	if !t.client.gone() {
		t.client.readOn(t.kind)
	}
}

// put adds t at the end.
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

// remove removes the first n tickets whose clients are not gone, and the tickets of
// gone clients before them. It returns the former as a list, linked by next.
func (g *gate) remove(n int) (first *ticket) {
	end := &first
	for n > 0 && g.first != nil {
		t := g.first
		g.first = t.next
		g.n--
		if t.client.gone() {
			continue
		}
		*end = t
		end = &t.next
		n--
	}
	*end = nil
	return first
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

// waitAt makes the client wait at the gate at, which is of kind k. It returns false if the
// client waits at such a gate already.
func (g *ledger) waitAt(k gateKind, at *gate) bool {
	if g.shut&(1<<k) != 0 {
		return false
	}
	g.shut |= 1 << k
	at.put(&g.tickets[k])
	return true
}
