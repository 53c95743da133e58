package tcpframe

// A pauseReason is one of our own reasons not to read.
type pauseReason uint8

const (
	whyOutbound pauseReason = 1 << iota // the peer does not take what it is owed
	whyMemory                           // Memory has nothing to lend
)

func (c *Conn) paused() bool { return c.pauses > 0 || c.why != 0 }

// Pause stops reading until Resume was called as often. No record is delivered
// after the one that is being delivered now; at most 128 KiB of what has been
// read already is held.
func (c *Conn) Pause() {
	c.pauses++
	c.sock.FlushSoon()
}

// Resume undoes one Pause. Records go on at the end of this pass.
func (c *Conn) Resume() {
	if c.pauses--; c.pauses < 0 {
		panic("BUG: tcpframe: Resume without Pause")
	}
	c.sock.FlushSoon()
}
