package rdmaside

// A parked is a message that stays in its Receive buffer until there is an
// Exchange for it. This happens on a connection whose Calls are answered faster
// than its Sends complete, or when there is no memory for another Exchange.
// Neither is the peer's fault, and both conditions are temporary. The number of
// Receives bounds how many there are.
type parked struct{ recv, octets int }

// park keeps the message of n octets in Receive buffer i.
func (c *ResponderConn) park(i, n int) {
	c.parked = append(c.parked, parked{i, n})
	c.responder.metrics.parked.Inc()
}

// A parkedTask handles parked messages.
type parkedTask ResponderConn

// Run handles messages in the order they came, while there are Exchanges.
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

// dropParked releases the parked messages of a closed connection.
func (c *ResponderConn) dropParked() {
	for _, p := range c.parked {
		c.recvs.drop(p.recv)
	}
	c.parked = nil
}
