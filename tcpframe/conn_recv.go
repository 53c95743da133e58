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

	keepHolds = 16 // spare buffers of held input that a loop keeps
)

// received handles the octets of one read.
func (c *Conn) received(b []byte) {
	c.active = c.Loop().Now()
	c.rx += int64(len(b))
	c.counters.received.Add(uint64(len(b)))
	if c.state == announcing {
		b = c.announced(b)
	}
	if c.state != open || len(b) == 0 {
		return // the input is discarded
	}
	if c.sock.awaits {
		c.sock.awaits = false
		c.sock.FlushSoon()
		if c.handler.(InputHandler).Input(c); c.state != open {
			return
		}
	}
	if c.tls != nil {
		c.tls.received(b)
		if !c.sock.dirty {
			c.settle()
		}
		return
	}
	if c.paused() || len(c.held) > 0 {
		// These octets were on their way when reading was paused, or reading was resumed
		// in this pass.
		c.hold(b)
		c.sock.FlushSoon()
		return
	}
	if rest := c.parse(b); len(rest) > 0 {
		c.hold(rest)
	} else if c.state == open && !c.paused() {
		c.fill()
	}
	if !c.sock.dirty {
		c.settle()
	}
}

// parse consumes records at the front of b. It returns the octets that it must not parse now,
// because reading is paused.
func (c *Conn) parse(b []byte) []byte {
	for len(b) > 0 && c.state == open && c.tls == nil && !c.paused() {
		if c.split.left == 0 {
			n, done, err := c.split.marks(b)
			b = b[n:]
			switch {
			case err != nil:
				c.fault(err)
			case done:
				c.ended()
			}
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
	if c.state != open {
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

// ended follows a record that ends with an empty fragment.
func (c *Conn) ended() {
	if c.drop != nil {
		c.endDrop()
		return
	}
	c.deliver()
}

// deliver passes the complete record to the handler.
func (c *Conn) deliver() {
	b := c.record
	b.Resize(c.have)
	c.record, c.buf, c.have = nil, nil, 0
	c.records++
	c.handler.Record(c, b)
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
	c.memWant = n
	if c.memSince == 0 {
		c.memSince = c.Loop().Now()
	}
	if c.memFunc == nil {
		c.memFunc = func() { c.Loop().Post((*memoryTask)(c)) }
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
	if b, err := c.memory.Lease(c.memWant); err == nil {
		c.memory.Return(b)
	}
}

// hold keeps a copy of b until reading is resumed.
func (c *Conn) hold(b []byte) {
	if len(c.held) == 0 && len(b) > cap(c.holdBuf) {
		c.dropHold()
		c.holdBuf = c.Loop().takeHold(len(b))
		c.held = c.holdBuf[:0]
	}
	if n := len(c.held) + len(b); n > cap(c.held) {
		// One read more, and no other one: then the socket leaves the loop.
		c.held = append(make([]byte, 0, max(n, min(2*n, 2*readBuffer))), c.held...)
	}
	c.held = append(c.held, b...)
	c.copied += len(b)
	c.Loop().hurry = true
}

// parseHeld parses the octets that were held, once reading is resumed.
func (c *Conn) parseHeld() {
	if c.tls != nil {
		c.tls.openHeld()
		return
	}
	if len(c.held) == 0 || c.state != open || c.paused() {
		return
	}
	b := c.held
	c.held = nil // what parse returns will follow, and nothing else: StartTLS looks
	c.held = c.parse(b)
	if len(c.held) == 0 {
		c.dropHold()
	}
}

// dropHold forgets the octets that were held.
func (c *Conn) dropHold() {
	c.Loop().putHold(c.holdBuf)
	c.held, c.holdBuf = nil, nil
}

// takeHold returns an empty slice with a capacity of at least n octets.
func (l *Loop) takeHold(n int) []byte {
	if k := len(l.holds); k > 0 && n > readBuffer/4 && n <= readBuffer {
		b := l.holds[k-1]
		l.holds[k-1] = nil
		l.holds = l.holds[:k-1]
		return b
	}
	if n > readBuffer/4 {
		n = max(n, readBuffer)
	}
	return make([]byte, 0, n)
}

// putHold keeps b for takeHold if it is as long as one read.
func (l *Loop) putHold(b []byte) {
	if cap(b) == readBuffer && len(l.holds) < keepHolds {
		l.holds = append(l.holds, b[:0])
	}
}
