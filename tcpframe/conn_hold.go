package tcpframe

// hold keeps a copy of b until reading is resumed.
func (c *Conn) hold(b []byte) {
	c.held = append(c.held, b...)
	c.copied += len(b)
	c.loop.Hurry()
}
