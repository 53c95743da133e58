package tcpframe

const (
	// firstLease bounds the memory that a Conn leases for a record before growAt octets of the
	// record have arrived. After that the Conn leases as much as the record announces. A record
	// mark alone thus costs at most 64 KiB.
	firstLease = 64 << 10
	growAt     = 32 << 10
	// directRead is how many octets of a fragment must be missing for the Conn to read them
	// from the socket straight into the record. Records of 1 MiB gain 1.1 to 1.15 times the
	// throughput. The Conn receives a shorter remainder with the next read, together with the
	// octets that follow it, which costs less.
	directRead = 16 << 10
)

// parse consumes records at the front of b. It returns the octets that it must not parse now,
// because reading is paused.
func (c *Conn) parse(b []byte) []byte {
	for len(b) > 0 && c.state == open && c.tls == nil && !c.paused() {
		if c.split.left == 0 {
			if c.drop == nil && !c.split.begun() {
				n, ok := c.deliverAll(b)
				b = b[n:]
				if !ok {
					return b
				}
				if n > 0 {
					continue
				}
			}
			b = b[c.readMarks(b):]
			continue
		}
		n := min(c.split.left, len(b))
		if c.drop != nil {
			c.discard(b[:n])
			b = b[n:]
			continue
		}
		if !c.room(n, c.have+n) {
			return b
		}
		c.copied += copy(c.buf[c.have:], b[:n])
		c.arrived(n)
		b = b[n:]
	}
	if c.tls != nil && len(b) > 0 {
		c.failTLS(errBehindPlain)
	}
	if c.state != open || len(b) == 0 {
		return nil
	}
	return b
}

// fill reads the rest of a long fragment from the socket straight into the record.
func (c *Conn) fill() {
	for c.split.left >= directRead && c.drop == nil {
		n := c.split.left
		if c.have < growAt {
			// The buffer may be shorter than firstLease while memory is short, and there is none
			// before the first octet. The next read brings the octets then.
			if n = min(n, len(c.buf)-c.have, firstLease-c.have); n < directRead {
				return
			}
		}
		if !c.room(n, c.have) {
			return
		}
		n, _ = c.sock.Read(c.buf[c.have : c.have+n])
		if n == 0 {
			return
		}
		c.rx += int64(n)
		c.counters.received.Add(uint64(n))
		c.arrived(n)
	}
}

// arrived counts n octets that were put into the record.
func (c *Conn) arrived(n int) {
	c.have += n
	if c.split.advance(n) {
		c.deliver()
	}
}

// readMarks consumes n octets of record marks at the front of b.
func (c *Conn) readMarks(b []byte) (n int) {
	n, done, err := c.split.marks(b)
	switch {
	case err != nil:
		c.fault(err)
	case done && c.drop != nil:
		c.endDrop()
	case done: // with an empty fragment
		c.deliver()
	}
	return n
}

// deliver passes the complete record to the handler.
func (c *Conn) deliver() {
	b := c.record
	b.Resize(c.have)
	c.record, c.buf, c.have = nil, nil, 0
	c.records++
	c.handler.Record(c, b)
}

// deliverAll passes the records to the handler that are whole and in one fragment at the front of b, as nearly all are,
// as long as the Conn parses records. It takes an eighth of what records cost that come in pieces. n is how many octets
// they have. When Memory has nothing to lend, deliverAll pauses reading and reports false.
func (c *Conn) deliverAll(b []byte) (n int, ok bool) {
	l := c.loop
	l.run, l.runAt = b, 0
	for ok = true; ok; {
		if c.runner != nil {
			c.runner.Run(c)
			l.endRelay()
		}
		m := c.Next()
		if m == nil {
			break
		}
		if ok = c.deliverCopy(m); ok {
			l.runAt += markLen + len(m)
		}
	}
	n, l.run = l.runAt, nil
	return n, ok
}

// Next returns the next record of a run, or nil if there is none or reading has stopped. It returns the same record
// until Took was called. For RunHandler.Run.
func (c *Conn) Next() []byte {
	if c.state != open || c.tls != nil || c.paused() {
		return nil
	}
	l := c.loop
	n := c.split.whole(l.run, l.runAt)
	if n == 0 {
		return nil
	}
	at := l.runAt + markLen
	return l.run[at : at+n : at+n]
}

// Took says that the handler has taken m, which Next has returned, and has copied so many octets for that.
func (c *Conn) Took(m []byte, copied int) {
	if c.loop.relay.to != nil {
		c.loop.endRelay() // its records are those right before
	}
	c.took(m, copied)
}

func (c *Conn) took(m []byte, copied int) {
	c.loop.runAt += markLen + len(m)
	c.copied += copied
	c.memSince = 0
	c.records++
}

// deliverCopy passes a copy of the record b to the handler. When Memory has nothing to lend, it pauses reading and
// returns false.
func (c *Conn) deliverCopy(b []byte) bool {
	r, err := c.memory.Lease(len(b))
	if err != nil {
		c.waitMemory(len(b))
		return false
	}
	c.memSince = 0
	c.copied += copy(r.Bytes(), b)
	c.records++
	c.handler.Record(c, r)
	return true
}

// room makes the record's buffer long enough for n octets more. arrived is how many octets of
// the record have arrived, including the octets that the caller is about to copy. When Memory
// has nothing to lend, room pauses reading and returns false.
func (c *Conn) room(n, arrived int) bool {
	need := c.have + n
	if c.record != nil && need <= len(c.buf) {
		return true
	}
	want := c.split.size + c.split.left // the record has at least this many octets
	if arrived < growAt {
		want = min(want, firstLease)
	}
	if c.record != nil {
		// A record mark announces only its own fragment. The buffer at least doubles, so that a
		// record of many short fragments does not cost quadratic copying.
		want = max(want, min(2*c.have, c.split.maxRecord))
	}
	want = max(want, need)
	b, err := c.memory.Lease(want)
	if err != nil && need < want && want <= firstLease {
		// Memory is short. The beginning of a record has to be kept before the Conn may ask for
		// as much as the record announces, so the Conn asks for that alone.
		want = need
		b, err = c.memory.Lease(want)
	}
	if err != nil {
		c.waitMemory(want)
		return false
	}
	c.memSince = 0
	buf := b.Bytes()
	buf = buf[:cap(buf)]
	if c.record != nil {
		c.copied += copy(buf, c.buf[:c.have])
		c.memory.Return(c.record)
	}
	c.record, c.buf = b, buf
	return true
}

// waitMemory pauses reading until Memory can lend n octets.
func (c *Conn) waitMemory(n int) {
	c.why |= whyMemory
	c.memWant = int32(n)
	if c.memSince == 0 {
		c.memSince = c.loop.Now()
	}
	if c.memFunc == nil {
		c.memFunc = func() { c.loop.Post((*memoryTask)(c)) }
	}
	c.sock.FlushSoon()
	c.memory.Wait(n, c.memFunc)
}

// A memoryTask is a Conn whose turn for memory has come.
type memoryTask Conn

func (t *memoryTask) Run() {
	c := (*Conn)(t)
	if c.state == open && c.why&whyMemory != 0 {
		c.why &^= whyMemory
		if c.paused() {
			c.memSince = 0 // for other reasons than memory it does not ask for its turn
		}
		c.sock.FlushSoon()
		return
	}
	// The connection has ended, or drops the record, and needs no memory. Leasing and releasing passes its turn
	// on: a release wakes the next connection that waits.
	if b, err := c.memory.Lease(int(c.memWant)); err == nil {
		c.memory.Return(b)
	}
}

// A DropHandler is a RecordHandler whose connection others share: a fault of one record must not end it.
type DropHandler interface {
	RecordHandler
	// Dropped says that the Conn reads a record to its end and delivers none of it, because of err. reason is
	// err's, as metrics have it. head has the first 8 octets of the record, or all of a shorter one, and is
	// valid until Dropped returns. Dropped reports whether the handler waits for a record that begins so.
	Dropped(c *Conn, head []byte, reason string, err error) (known bool)
}

// dropUnknown bounds a record that is dropped and that the handler does not wait for: it may have so many times
// as many octets as MaxRecord. What seems to be the mark of a longer one says that the stream is out of step.
const dropUnknown = 4

// fault handles a record that is not as it must be. It drops the record for a DropHandler, and otherwise closes the
// connection.
func (c *Conn) fault(err *recordError) {
	_, drops := c.handler.(DropHandler)
	if !drops || c.drop != nil {
		c.refuse(err)
		return
	}
	d := &dropped{err: err}
	d.have = copy(d.head[:], c.buf[:c.have])
	c.dropRecord()
	c.drop = d
	bound := c.split.drop(maxFragment)
	switch {
	case d.have == len(d.head) && !c.reportDropped():
	case bound != nil:
		c.refuse(bound)
	case c.split.skipped():
		c.endDrop()
	}
}

// discard takes b, the next octets of a record that is dropped.
func (c *Conn) discard(b []byte) {
	d := c.drop
	if !d.told {
		d.have += copy(d.head[d.have:], b)
		if d.have == len(d.head) && !c.reportDropped() {
			return
		}
	}
	if c.split.advance(len(b)) {
		c.endDrop()
	}
}

// reportDropped tells the handler of the record that is dropped. It reports whether the connection goes on.
func (c *Conn) reportDropped() bool {
	d := c.drop
	d.told = true
	known := c.handler.(DropHandler).Dropped(c, d.head[:d.have], string(d.err.reason), d.err)
	if c.state == open && !known {
		if bound := c.split.drop(min(c.split.maxRecord, maxFragment/dropUnknown) * dropUnknown); bound != nil {
			c.refuse(bound)
		}
	}
	return c.state == open
}

// endDrop follows the last octet of a record that is dropped.
func (c *Conn) endDrop() {
	if !c.drop.told { // it is shorter than head
		c.reportDropped()
	}
	c.drop = nil
	c.split.reset()
	c.records++
}
