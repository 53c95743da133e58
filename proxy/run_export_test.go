package proxy

import "github.com/rdmabridge/rdmabridge/internal/loop"

// Followed reports whether the Call that a loop has begun last followed the one before it.
func (p *Proxy) Followed() bool {
	followed, _ := loop.Gather(p.loops, p.quit, func(i int) bool { return p.loops[i].run.args != nil })
	for _, f := range followed {
		if f {
			return true
		}
	}
	return false
}
