package proxy

// TakeReplies takes all memory for Replies until the function that it returns is called.
func (p *Proxy) TakeReplies() (giveBack func()) {
	var all []releaser
	for n := 1 << 20; n >= 64; n /= 2 {
		for {
			l, err := p.replies.Lease(n)
			if err != nil {
				break
			}
			all = append(all, l)
		}
	}
	return func() {
		for _, l := range all {
			l.Release()
		}
	}
}
