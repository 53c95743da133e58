package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Reconfiguration
//
// The settings of a listener and the options of an upstream are values that never change. A
// loop loads them through one atomic pointer each time it needs them, and Reconfigure stores
// another pointer. So a Call sees the old settings or the new ones.
//
// A listener stays, with its clients, if its name, address and transport stay. Otherwise it
// is removed and another one is new. A removed listener drains: it accepts no client, and closes
// each client as soon as it is idle. Its series end with its last client. A new listener at the address of a removed one takes over its
// socket, so that no client that connects meanwhile is refused.
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
func (p *Proxy) Reconfigure(listeners []ListenerOptions, upstreams []UpstreamOptions) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	switch p.mu.Lock(); {
	case p.draining || p.closed:
		p.mu.Unlock()
		return errDraining
	case p.ctx == nil:
		p.mu.Unlock()
		return errNotStarted
	}
	p.mu.Unlock()

	c := change{p: p, upstreams: make(map[string]*upstream), options: make(map[*upstream]UpstreamOptions)}
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
	upstreams map[string]*upstream
	added     []*upstream
	options   map[*upstream]UpstreamOptions // the new options of upstreams that stay
	listeners []plannedListener
	removed   []*listener
}

type plannedListener struct {
	l        *listener
	settings *listenerSettings
	isNew    bool
	socket   *net.TCPListener // for a new listener to listen on
}

func (c *change) planUpstreams(all []UpstreamOptions) error {
	var errs []error
	for _, o := range all {
		if c.upstreams[o.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", o.Name))
			continue
		}
		if u := c.p.allUpstreams()[o.Name]; u != nil && u.isRDMA == o.RDMA && u.settings().Source == o.Source && u.settings().NamesClients == o.NamesClients && u.settings().TLS.same(o.TLS) && u.settings().keepsEndpoints(&o) {
			errs = append(errs, o.check())
			c.upstreams[o.Name], c.options[u] = u, o
			continue
		}
		u, err := newUpstream(c.p, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.upstreams[o.Name] = u
		c.added = append(c.added, u)
	}
	return errors.Join(errs...)
}

func (c *change) planListeners(all []ListenerOptions) error {
	var errs []error
	c.removed = slices.Clone(c.p.currentListeners())
	for _, o := range all {
		var x plannedListener
		i := slices.IndexFunc(c.removed, func(l *listener) bool {
			return l.name == o.Name && l.address == o.Address && l.isRDMA == o.RDMA
		})
		if i >= 0 {
			x.l = c.removed[i]
			c.removed = slices.Delete(c.removed, i, i+1)
		} else {
			x.l, x.isNew = newListener(c.p, o), true
		}
		var err error
		if x.settings, err = x.l.newSettings(o, c.upstreams); err != nil {
			errs = append(errs, err)
		}
		c.listeners = append(c.listeners, x)
	}
	return errors.Join(errs...)
}

// open finds a socket for each new listener.
func (c *change) open() error {
	taken := make(map[*listener]bool)
	var errs []error
	for i := range c.listeners {
		x := &c.listeners[i]
		if !x.isNew {
			continue
		}
		if _, ok := x.settings.opts.Provider.(fabric.SocketProvider); x.l.isRDMA && !ok {
			continue // the provider opens the address itself, in startRDMA
		}
		var err error
		for _, l := range c.removed {
			if l.address == x.l.address && !taken[l] {
				taken[l] = true
				x.socket, err = l.share()
				break
			}
		}
		if x.socket == nil && err == nil {
			x.socket, err = openSocket(x.l.address)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("proxy: listener %s: %w", x.l.name, err))
		}
	}
	return errors.Join(errs...)
}

func openSocket(address string) (*net.TCPListener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// share returns another descriptor of the listening socket, or nil if there is no socket.
func (l *listener) share() (*net.TCPListener, error) {
	s := l.socket()
	if s == nil {
		return nil, nil
	}
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
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
			x.settings.policy.describe(x.l)
			x.l.current.Store(x.settings)
			x.l.describe()
		}
	}
	p.mu.Lock()
	old := p.upstreams
	p.upstreams = c.upstreams
	p.listeners = make([]*listener, len(c.listeners))
	for i, x := range c.listeners {
		p.listeners[i] = x.l
	}
	p.leaving = slices.Concat(p.leaving, c.removed)
	leaving := c.removed
	if p.closed {
		leaving = nil
	}
	p.retiring.Add(len(leaving))
	var retiring []*upstream
	for _, u := range old {
		if c.upstreams[u.name] != u && !p.closed {
			retiring = append(retiring, u)
			p.retired[u] = struct{}{}
			p.retiring.Add(1)
		}
	}
	p.mu.Unlock()

	for u, o := range c.options {
		u.update(o)
	}
	p.sharePins()
	p.limitDials()
	for _, u := range c.added {
		u.describe()
		for _, up := range u.pools {
			up.Start()
		}
	}
	for _, l := range c.removed {
		l.stopListening()
	}
	var errs []error
	for _, x := range c.listeners {
		if !x.isNew {
			x.l.update(x.settings)
			continue
		}
		if err := x.l.start(p.ctx, x.socket); err != nil {
			errs = append(errs, fmt.Errorf("proxy: listener %s: %w", x.l.name, err))
		}
	}
	for _, l := range c.removed {
		l.log.Info().Str("event", "listener_removed").Str("address", l.addr()).Int("clients", l.clientCount()).Msg("listener removed")
		l.drain()
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
func (p *Proxy) retire(u *upstream) {
	defer p.retiring.Done()
	o := u.settings()
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
			u.log.Warn().Str("event", "upstream_abandoned").Int("calls", n).Msg("upstream removed with calls under way; their clients are closed")
			waiting = false
		case <-t.C:
		}
	}
	u.close()
	p.mu.Lock()
	delete(p.retired, u)
	p.mu.Unlock()
	p.hosts.dropClosed()
	for _, l := range p.allListeners() {
		l.follow() // so that clients that are idle do not keep it
	}
	p.changing.Lock()
	p.forgetUpstream(u.name)
	p.changing.Unlock()
	u.log.Info().Str("event", "upstream_removed").Msg("upstream removed")
}

// retireListener forgets a removed listener when its last client has gone.
func (p *Proxy) retireListener(l *listener) {
	defer p.retiring.Done()
	select {
	case <-p.quit:
		return
	case <-l.empty:
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	p.leaving = slices.DeleteFunc(p.leaving, func(x *listener) bool { return x == l })
	p.mu.Unlock()
	p.forgetListener(l.name)
}

// forgetListener ends the series of listeners of this name, unless there is one. p.changing is held, so that no
// Reconfigure makes one meanwhile.
func (p *Proxy) forgetListener(name string) {
	if slices.ContainsFunc(p.allListeners(), func(l *listener) bool { return l.name == name }) {
		return
	}
	p.operations.forget(func(k *operationKey) bool { return k.listener == name })
	p.metrics.Forget("listener", name)
	p.engine.ForgetListener(name)
}

// forgetUpstream does for upstreams what forgetListener does for listeners.
func (p *Proxy) forgetUpstream(name string) {
	p.mu.Lock()
	known := p.upstreams[name] != nil
	for u := range p.retired {
		known = known || u.name == name
	}
	p.mu.Unlock()
	if known {
		return
	}
	p.operations.forget(func(k *operationKey) bool { return k.upstream == name })
	p.metrics.Forget("upstream", name)
	p.engine.ForgetUpstream(name)
	delete(p.numbers, name)
}

// underWay is how many Calls a removed upstream has. It waits for a pass of every loop, so
// that a Call which was routed by old settings is counted. It reports false when the Proxy is
// closed.
func (p *Proxy) underWay(u *upstream) (n int, ok bool) {
	counts := make(chan int, len(p.loops))
	for i, l := range p.loops {
		l.Post(loop.TaskFunc(func() { counts <- u.under[i].n }))
	}
	for range p.loops {
		select {
		case x := <-counts:
			n += x
		case <-p.quit:
			return 0, false
		}
	}
	return n, true
}

// StopAccepting stops listening and leaves all clients as they are, including those that are
// just connecting. It is for a hand-over: another process has the sockets, and Drain follows.
func (p *Proxy) StopAccepting() {
	for _, l := range p.currentListeners() {
		l.stopAccepting()
	}
}

// A Socket is a listening socket. File returns another descriptor of it, like the method of
// net.TCPListener.
type Socket interface {
	File() (*os.File, error)
}

// Sockets are the listening sockets, by the configured addresses of the listeners, to be
// handed to another process.
func (p *Proxy) Sockets() map[string]Socket {
	sockets := make(map[string]Socket)
	for _, l := range p.currentListeners() {
		if s := l.socket(); s != nil {
			sockets[l.address] = s
		}
	}
	return sockets
}
