package proxy

import (
	"runtime"
	"weak"
)

// Freed returns functions that report, after a garbage collection, whether nothing refers any more to the listener, the
// upstream and the tenant that have these names now. A name of "" stands for none.
func (p *Proxy) Freed(listener, upstream, tenant string) (all map[string]func() bool) {
	all = make(map[string]func() bool)
	for _, l := range p.CurrentListeners() {
		if l.Name == listener {
			all["listener "+listener] = freed(l)
		}
	}
	if u := p.allUpstreams()[upstream]; u != nil {
		all["upstream "+upstream] = freed(u)
	}
	for _, t := range p.tenants.List() {
		if t.Name == tenant {
			all["tenant "+tenant] = freed(t)
		}
	}
	return all
}

func freed[T any](v *T) func() bool {
	w := weak.Make(v)
	return func() bool {
		runtime.GC()
		return w.Value() == nil
	}
}
