package rdmaside

// A parked is a message that stays in its Receive buffer until there is an Exchange
// for it: a connection that answers faster than its Sends complete, or one that
// wants its next Exchange while there is no memory. Neither is the peer's fault, and
// both pass. The Receives posted bound how many there are.
type parked struct{ recv, octets int }

// park keeps the message of n octets in Receive buffer i.
func (c *ResponderConn) park(i, n int) {
	c.parked = append(c.parked, parked{i, n})
	c.responder.metrics.parked.Inc()
}

// awaitExchange has parked messages looked at when memory for an Exchange can be
// had. When it is Exchanges that lack, recycle does it.
func (c *ResponderConn) awaitExchange() {
	if !c.awaiting {
		c.awaiting = true
		c.responder.opts.Replies.Wait(exchangeBuffer, c.unpark)
	}
}

// A parkedTask takes up what is parked.
type parkedTask ResponderConn

// Run takes up messages, in the order they came, while there are Exchanges.
func (t *parkedTask) Run() {
	c := (*ResponderConn)(t)
	c.awaiting = false
	n := 0
	for ; n < len(c.parked) && c.state == up; n++ {
		x := c.exchange()
		if x == nil {
			break
		}
		p := c.parked[n]
		c.message(x, p.recv, c.recvs.bytes(p.recv)[:p.octets])
	}
	c.parked = c.parked[:copy(c.parked, c.parked[n:])]
}

// dropParked gives back what a connection that has ended never looked at.
func (c *ResponderConn) dropParked() {
	for _, p := range c.parked {
		c.recvs.drop(p.recv)
	}
	c.parked = nil
}
