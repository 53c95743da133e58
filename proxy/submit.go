package proxy

// submit gives c, which the client's ledger counts, to its pool, or to its GSS context, which gives it to the pool.
func (f *front) submit(c *call) {
	f.loop.account.asked(c)
	if c.keepsOrder() {
		f.submitInOrder(c)
		return
	}
	c.setState(callQueued)
	c.progress.Asked = f.loop.Now()
	f.loop.batch.Submit(c.queue.pool, &c.entry)
	f.loop.submitted = c
}

// submitInOrder gives c, which the client's ledger counts, to its GSS context.
func (f *front) submitInOrder(c *call) {
	f.ordered++
	c.charge.Ordered, c.usesSeldom = true, true
	c.up.GSSContexts.Enter(&c.gss, c, f.loop.index)
}

// proceed submits c, which was held because it repeats a Call that has ended without a Reply.
func (f *front) proceed(c *call) {
	f.unhold(c)
	if f.Gone() {
		c.finish(f.loop.index)
		return
	}
	f.submit(c)
}
