package tcpframe

// A pauseReason is a reason of the Conn's own for not reading.
type pauseReason uint8

const (
	whyOutbound pauseReason = 1 << iota // the peer does not read what is queued for it
	whyMemory                           // Memory has nothing to lend
)

func (c *Conn) paused() bool { return c.pauses > 0 || c.why != 0 }

// Pause stops reading until Resume was called as often. No record is delivered after the record
// that is being delivered now. The Conn holds the octets that were read already, at most 128
// KiB.
func (c *Conn) Pause() {
	c.pauses++
	c.sock.FlushSoon()
}

// Resume undoes one Pause. Records are delivered again at the end of this pass.
func (c *Conn) Resume() {
	if c.pauses--; c.pauses < 0 {
		panic("BUG: tcpframe: Resume without Pause")
	}
	c.sock.FlushSoon()
}

// noteUnread tells the handler that whyOutbound has changed.
func (c *Conn) noteUnread(unread bool) {
	if h, ok := c.handler.(UnreadHandler); ok {
		h.Unread(unread)
	}
}
