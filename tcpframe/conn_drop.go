package tcpframe

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
