package rdmaside

// A parked is a message that stays in its Receive buffer until there are an
// Exchange and a credit for it. There is no Exchange on a connection whose Calls
// are answered faster than its Sends complete, or when there is no memory for
// another one; neither is the peer's fault. There is no credit for a Call beyond
// the grant: responder_excess.go. All these conditions are temporary. The number
// of Receives bounds how many there are.
type parked struct{ recv, octets int }

// park keeps the message of n octets in Receive buffer i.
func (c *ResponderConn) park(i, n int) {
	c.parked = append(c.parked, parked{i, n})
	c.responder.metrics.parked.Inc()
}

// A parkedTask handles parked messages.
type parkedTask ResponderConn

// Run handles messages in the order they came, while there are Exchanges and credits.
func (t *parkedTask) Run() {
	c := (*ResponderConn)(t)
	c.awaiting, c.called = false, false
	n := 0
	for ; n < len(c.parked) && c.state == up; n++ {
		p := c.parked[n]
		b := c.recvs.bytes(p.recv)[:p.octets]
		if c.grants.Full() && isCall(b) {
			break
		}
		x := c.exchange()
		if x == nil {
			break
		}
		c.message(x, p.recv, b)
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
