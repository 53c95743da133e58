package tcpframe

const (
	// firstLease is what a record gets before growAt octets of it have come; then
	// it gets all it announced. So a mark alone costs 64 KiB at most.
	firstLease = 64 << 10
	growAt     = 32 << 10
	// directRead is how much of a fragment must be missing for it to be read from
	// the socket to where it belongs: 1.1 to 1.15 times the throughput of 1 MiB
	// records. Below, one read that also brings what follows is better.
	directRead = 16 << 10

	keepHolds = 16 // buffers of held input that a loop keeps
)

// received takes what one read brought.
func (c *Conn) received(b []byte) {
	c.active = c.Loop().Now()
	c.rx += int64(len(b))
	c.counters.received.Add(uint64(len(b)))
	if c.state != open {
		return // nobody wants it
	}
	if c.paused() || len(c.held) > 0 {
		// It was on its way when reading was paused, or resumed in this pass.
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

// parse takes records off the front of b and returns what may not be parsed
// now.
func (c *Conn) parse(b []byte) []byte {
	for len(b) > 0 && c.state == open && !c.paused() {
		if c.split.left == 0 {
			n, done, err := c.split.marks(b)
			b = b[n:]
			if err != nil {
				c.refuse(err)
				return nil
			}
			if done {
				c.deliver()
			}
			continue
		}
		n := min(c.split.left, len(b))
		if !c.room(n, c.have+n) {
			return b
		}
		c.copied += copy(c.buf[c.have:], b[:n])
		c.take(n)
		b = b[n:]
	}
	if c.state != open {
		return nil
	}
	return b
}

// fill reads a long fragment to where it belongs.
func (c *Conn) fill() {
	for c.split.left >= directRead {
		n := c.split.left
		if c.have < growAt {
			n = min(n, firstLease-c.have)
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
		c.take(n)
	}
}

// take counts n octets that were put into the record.
func (c *Conn) take(n int) {
	c.have += n
	if c.split.advance(n) {
		c.deliver()
	}
}

func (c *Conn) deliver() {
	b := c.record
	b.Resize(c.have)
	c.record, c.buf, c.have = nil, nil, 0
	c.records++
	c.handler.Record(c, b)
}

// room makes place for n octets more, of a record of which arrived octets are
// here. When Memory has none to lend, it reports false, and reading pauses.
func (c *Conn) room(n, arrived int) bool {
	need := c.have + n
	if c.record != nil && need <= len(c.buf) {
		return true
	}
	want := c.split.size + c.split.left // what the record has at least
	if arrived < growAt {
		want = min(want, firstLease)
	}
	if c.record != nil {
		// Fragments that announce a little each: double, so that copying stays linear.
		want = max(want, min(2*c.have, c.opts.MaxRecord))
	}
	want = max(want, need)
	b, err := c.opts.Memory.Lease(want)
	if err != nil {
		c.waitMemory(want)
		return false
	}
	c.memSince = 0
	b.Resize(cap(b.Bytes()))
	buf := b.Bytes()
	if c.record != nil {
		c.copied += copy(buf, c.buf[:c.have])
		c.record.Release()
	}
	c.record, c.buf = b, buf
	return true
}

// waitMemory pauses until Memory calls.
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
	c.opts.Memory.Wait(n, c.memFunc)
}

// memoryTask is a Conn whose turn for memory it is.
type memoryTask Conn

func (t *memoryTask) Run() {
	c := (*Conn)(t)
	if c.state == open {
		c.why &^= whyMemory
		c.sock.FlushSoon()
		return
	}
	// The turn is not wanted any more: a lease given back wakes the next in line.
	if b, err := c.opts.Memory.Lease(c.memWant); err == nil {
		b.Release()
	}
}

// hold copies b, which may not be parsed now.
func (c *Conn) hold(b []byte) {
	if len(c.held) == 0 && len(b) > cap(c.holdBuf) {
		c.dropHold()
		c.holdBuf = c.Loop().takeHold(len(b))
		c.held = c.holdBuf[:0]
	}
	c.held = append(c.held, b...)
	c.copied += len(b)
}

// parseHeld goes on with what was held, when reading was resumed.
func (c *Conn) parseHeld() {
	if len(c.held) == 0 || c.state != open || c.paused() {
		return
	}
	c.held = c.parse(c.held)
	if len(c.held) == 0 {
		c.dropHold()
	}
}

func (c *Conn) dropHold() {
	c.Loop().putHold(c.holdBuf)
	c.held, c.holdBuf = nil, nil
}

// takeHold returns an empty slice with room for n octets.
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

func (l *Loop) putHold(b []byte) {
	if cap(b) == readBuffer && len(l.holds) < keepHolds {
		l.holds = append(l.holds, b[:0])
	}
}
