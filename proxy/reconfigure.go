package proxy

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Reconfiguration
//
// The settings of a listener and the options of an upstream are values that never change. A
// loop loads them through one atomic pointer each time it needs them, and Reconfigure stores
// another pointer. So a Call sees the old settings or the new ones.
//
// A listener stays, with its clients, if its name, address and transport stay. Otherwise it is removed and another one
// is new. A removed listener drains: it accepts no client, and closes each client as soon as it is idle. Its series end
// with its last client. A new listener at the address of a removed one takes over its socket, so that no client that
// connects meanwhile is refused.
//
// An upstream stays if its name, transport, source and TLS stay. Its connections stay, too, unless
// they would be made differently now: then they are replaced one after the other, each when
// its Calls are answered. A removed upstream ends after its last Call.
//
// Reconfigure first does everything that can fail, such as opening addresses, and only then
// changes anything.

var errNotStarted = errors.New("proxy: not started")

// Reconfigure replaces the listeners and upstreams, and keeps clients connected. After an
// error nothing has changed. Reconfigure waits for no Call. An upstream whose connections are
// to stay must have the same Provider value as before. The Provider of a listener counts only
// when the listener is new.
func (p *Proxy) Reconfigure(listeners []settings.ListenerOptions, upstreams []settings.UpstreamOptions) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	switch {
	case p.inventory.drains():
		return errDraining
	case p.ctx == nil:
		return errNotStarted
	}

	c := change{
		p: p, upstreams: make(map[string]*upstream.Upstream),
		options: make(map[*upstream.Upstream]settings.UpstreamOptions),
	}
	err := errors.Join(c.planUpstreams(upstreams), c.planListeners(listeners))
	if err == nil {
		err = c.open()
	}
	if err != nil {
		c.undo()
		for i := range listeners {
			p.forgetListener(listeners[i].Name)
		}
		for i := range upstreams {
			p.forgetUpstream(upstreams[i].Name)
		}
		return err
	}
	return c.commit()
}

// A change is one Reconfigure: the listeners and upstreams that there will be.
type change struct {
	p         *Proxy
	upstreams map[string]*upstream.Upstream
	added     []*upstream.Upstream
	options   map[*upstream.Upstream]settings.UpstreamOptions // the new options of upstreams that stay
	listeners []plannedListener
	removed   []*listener.Listener
}

type plannedListener struct {
	l        *listener.Listener
	settings *listener.Settings
	isNew    bool
	socket   *net.TCPListener // for a new listener to listen on
}

func (c *change) planUpstreams(all []settings.UpstreamOptions) error {
	var errs []error
	x := c.p.upstreamContext()
	for _, o := range all {
		if c.upstreams[o.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", o.Name))
			continue
		}
		if u := c.p.allUpstreams()[o.Name]; u != nil && u.Settings().Stays(&o) {
			errs = append(errs, o.Check())
			c.upstreams[o.Name], c.options[u] = u, o
			continue
		}
		u, err := upstream.New(x, c.p.number(o.Name), o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.upstreams[o.Name] = u
		c.added = append(c.added, u)
	}
	return errors.Join(errs...)
}

func (c *change) planListeners(all []settings.ListenerOptions) error {
	var errs []error
	c.removed = slices.Clone(c.p.CurrentListeners())
	context := c.p.listenerContext()
	for _, o := range all {
		var x plannedListener
		i := slices.IndexFunc(c.removed, func(l *listener.Listener) bool {
			return l.Name == o.Name && l.Address == o.Address && l.IsRDMA == o.RDMA
		})
		if i >= 0 {
			x.l = c.removed[i]
			c.removed = slices.Delete(c.removed, i, i+1)
		} else {
			x.l, x.isNew = listener.New(context, o), true
		}
		var err error
		if x.settings, err = x.l.NewSettings(o, c.upstreams); err != nil {
			errs = append(errs, err)
		}
		c.listeners = append(c.listeners, x)
	}
	return errors.Join(errs...)
}

// open finds a socket for each new listener.
func (c *change) open() error {
	taken := make(map[*listener.Listener]bool)
	var errs []error
	for i := range c.listeners {
		x := &c.listeners[i]
		if !x.isNew {
			continue
		}
		if _, ok := x.settings.Opts.Provider.(fabric.SocketProvider); x.l.IsRDMA && !ok {
			continue // the provider opens the address itself, in startRDMA
		}
		var err error
		for _, l := range c.removed {
			if l.Address == x.l.Address && !taken[l] {
				taken[l] = true
				x.socket, err = l.Share()
				break
			}
		}
		if x.socket == nil && err == nil {
			x.socket, err = loop.Listen(x.l.Address)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("proxy: listener %s: %w", x.l.Name, err))
		}
	}
	return errors.Join(errs...)
}

// undo closes the sockets that open opened.
func (c *change) undo() {
	for _, x := range c.listeners {
		if x.socket != nil {
			_ = x.socket.Close()
		}
	}
}

func (c *change) commit() error {
	p := c.p
	for _, x := range c.listeners {
		if x.isNew { // before anybody can see it
			x.l.Open(x.settings)
		}
	}
	ls := make([]*listener.Listener, len(c.listeners))
	for i, x := range c.listeners {
		ls[i] = x.l
	}
	leaving, retiring := p.inventory.replace(ls, c.upstreams, c.removed)

	for u, o := range c.options {
		u.Update(o)
	}
	p.sharePins()
	p.limitDials()
	for _, u := range c.added {
		u.Describe()
		u.Start()
	}
	for _, l := range c.removed {
		l.StopListening()
	}
	var errs []error
	for _, x := range c.listeners {
		if !x.isNew {
			x.l.Update(x.settings)
			continue
		}
		if err := x.l.Start(p.ctx, x.socket); err != nil {
			errs = append(errs, fmt.Errorf("proxy: listener %s: %w", x.l.Name, err))
		}
	}
	for _, l := range c.removed {
		l.Log.Info().Str("event", "listener_removed").Str("address", l.Addr()).Int("clients", l.ClientCount()).
			Msg("listener removed")
		l.Drain()
	}
	for _, l := range leaving {
		go p.retireListener(l)
	}
	for _, u := range retiring {
		go p.retire(u)
	}
	return errors.Join(errs...)
}

// retireLook is the time between two looks at whether a removed upstream has Calls.
const retireLook = 20 * time.Millisecond

// retire ends an upstream that no listener's settings name any more: after its last Call, or
// after the longest time that a Call may wait and take.
func (p *Proxy) retire(u *upstream.Upstream) {
	defer p.retiring.Done()
	o := u.Settings()
	limit := time.NewTimer(o.CallTimeout + o.UnavailableAfter)
	defer limit.Stop()
	t := time.NewTicker(retireLook)
	defer t.Stop()
	for waiting := true; waiting; {
		n, ok := p.underWay(u)
		if !ok || n == 0 {
			break
		}
		select {
		case <-p.quit:
			waiting = false
		case <-limit.C:
			u.Abandoned(n)
			waiting = false
		case <-t.C:
		}
	}
	u.Close()
	p.inventory.retire(u)
	p.hosts.DropClosed()
	for _, l := range p.AllListeners() {
		l.Follow() // so that clients that are idle do not keep it
	}
	p.changing.Lock()
	p.forgetUpstream(u.Name)
	p.changing.Unlock()
	u.Removed()
}

// retireListener forgets a removed listener when its last client has gone.
func (p *Proxy) retireListener(l *listener.Listener) {
	defer p.retiring.Done()
	if !l.AwaitEmpty() {
		return
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	p.inventory.retireListener(l)
	p.forgetListener(l.Name)
}

// forgetListener ends the series of listeners of this name, unless there is one. p.changing is held, so that no
// Reconfigure makes one meanwhile.
func (p *Proxy) forgetListener(name string) {
	if slices.ContainsFunc(p.AllListeners(), func(l *listener.Listener) bool { return l.Name == name }) {
		return
	}
	p.operations.Forget(func(k *observe.Key) bool { return k.Listener == name })
	p.metrics.Forget("listener", name)
	p.engine.ForgetListener(name)
}

// forgetUpstream does for upstreams what forgetListener does for listeners.
func (p *Proxy) forgetUpstream(name string) {
	if p.usesUpstream(name) {
		return
	}
	p.operations.Forget(func(k *observe.Key) bool { return k.Upstream == name })
	p.metrics.Forget("upstream", name)
	p.engine.ForgetUpstream(name)
	delete(p.numbers, name)
}

// underWay is how many Calls a removed upstream has. It waits for a pass of every loop, so
// that a Call which was routed by old settings is counted. It reports false when the Proxy is
// closed.
func (p *Proxy) underWay(u *upstream.Upstream) (n int, ok bool) {
	counts, ok := loop.Gather(p.loops, p.quit, u.CallsOf)
	for _, x := range counts {
		n += x
	}
	return n, ok
}

// StopAccepting stops listening and leaves all clients as they are, including those that are
// just connecting. It is for a hand-over: another process has the sockets, and Drain follows.
func (p *Proxy) StopAccepting() {
	for _, l := range p.CurrentListeners() {
		l.StopAccepting()
	}
}

// Sockets are the listening sockets, by the configured addresses of the listeners, to be
// handed to another process.
func (p *Proxy) Sockets() map[string]listener.Socket {
	sockets := make(map[string]listener.Socket)
	for _, l := range p.CurrentListeners() {
		if s := l.Socket(); s != nil {
			sockets[l.Address] = s
		}
	}
	return sockets
}
