package proxy

import (
	"maps"
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// An inventory knows the listeners and upstreams of a Proxy: those in force, and those that Reconfigure removed and
// that are still in use. It is safe for concurrent use.
type inventory struct {
	retiring sync.WaitGroup // counts upstreams and listeners that are being retired; Add with mu held and closed false

	mu        sync.Mutex                      // guards the rest; a leaf
	listeners []*listener.Listener            // never changed in place, but replaced
	upstreams map[string]*upstream.Upstream   // by name; never changed in place, but replaced
	leaving   []*listener.Listener            // removed by Reconfigure, and may have clients
	retired   map[*upstream.Upstream]struct{} // removed by Reconfigure, and may have Calls
	draining  bool
	closed    bool
}

func newInventory() *inventory {
	return &inventory{upstreams: make(map[string]*upstream.Upstream), retired: make(map[*upstream.Upstream]struct{})}
}

// set puts the first listeners and upstreams in force.
func (v *inventory) set(ls []*listener.Listener, us map[string]*upstream.Upstream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listeners, v.upstreams = ls, us
}

// replace puts other listeners and upstreams in force. removed are the listeners that are not in force any more. It
// returns the listeners and upstreams to retire, and counts them in retiring; none if the Proxy is closed.
func (v *inventory) replace(
	ls []*listener.Listener, us map[string]*upstream.Upstream, removed []*listener.Listener,
) (leaving []*listener.Listener, retired []*upstream.Upstream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.upstreams
	v.listeners, v.upstreams = ls, us
	v.leaving = slices.Concat(v.leaving, removed)
	if v.closed {
		return nil, nil
	}
	for _, u := range old {
		if us[u.Name] != u {
			retired = append(retired, u)
			v.retired[u] = struct{}{}
		}
	}
	v.retiring.Add(len(removed) + len(retired))
	return removed, retired
}

// retire forgets u, whose last Call is settled.
func (v *inventory) retire(u *upstream.Upstream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.retired, u)
}

// retireListener forgets l, whose last client has gone.
func (v *inventory) retireListener(l *listener.Listener) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.leaving = slices.DeleteFunc(v.leaving, func(x *listener.Listener) bool { return x == l })
}

// drain notes that the Proxy drains.
func (v *inventory) drain() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.draining = true
}

// drains reports whether the Proxy drains, or is closed.
func (v *inventory) drains() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.draining
}

// close notes that the Proxy is closed, and returns the upstreams to close, those being retired included. It reports
// false if the Proxy was closed before.
func (v *inventory) close() (us []*upstream.Upstream, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, false
	}
	v.closed, v.draining = true, true
	return slices.Concat(slices.Collect(maps.Values(v.upstreams)), slices.Collect(maps.Keys(v.retired))), true
}

// CurrentListeners are the listeners that listen. The caller must not change the slice.
func (v *inventory) CurrentListeners() []*listener.Listener {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.listeners
}

// AllListeners are the current listeners, and those that Reconfigure removed and that still
// have clients.
func (v *inventory) AllListeners() []*listener.Listener {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Concat(v.listeners, v.leaving)
}

// allUpstreams are the upstreams that Calls may go to, by name. The caller must not change
// the map.
func (v *inventory) allUpstreams() map[string]*upstream.Upstream {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.upstreams
}

// upstreamNamed is the upstream that has this name in the configuration, or nil.
func (v *inventory) upstreamNamed(name string) *upstream.Upstream { return v.allUpstreams()[name] }

// usesUpstream reports whether an upstream has this name, one that is being retired included.
func (v *inventory) usesUpstream(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.upstreams[name] != nil
	for u := range v.retired {
		known = known || u.Name == name
	}
	return known
}
