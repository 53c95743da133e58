package proxy

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// HoldReplies takes all memory for Replies, and returns the function that gives it back.
func (p *Proxy) HoldReplies() (release func()) {
	var held []*regmem.Lease
	for n := 1 << 20; n >= 1; n /= 2 {
		for {
			l, err := p.replies.Lease(n)
			if err != nil {
				break
			}
			held = append(held, l)
		}
	}
	return func() {
		for _, l := range held {
			l.Release()
		}
	}
}
