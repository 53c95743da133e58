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
// What clients are told to do lies in values that never change: a listener's terms,
// an upstream's options. A loop looks at them through one atomic pointer each time it
// needs them, and Reconfigure stores another one. A Call sees the old or the new.
//
// A listener is the same one if it has the name, the address and the transport of one
// that there is; its clients stay. Otherwise it is new, and the one that was there
// goes as in a drain: nobody new, each client closed once it is idle. When a new
// listener has the address of one that goes it takes over its socket, so that nobody
// who connects meanwhile is refused.
//
// An upstream is the same one if it has the name, the transport and the source. Its connections
// stay if what shaped them does, else they are replaced one after the other, each
// when its Calls are answered. One that no Call can come to any more goes when its
// last Call is done.
//
// What can fail, opening addresses above all, comes before anything is changed.

var errNotStarted = errors.New("proxy: not started")

// Reconfigure makes listeners and upstreams what the Proxy has, with its clients
// connected. An error says that nothing was changed. It waits for no Call. Providers
// of upstreams that are to stay as they are must be the same values as before; that
// of a listener counts only when it is new.
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
		return err
	}
	return c.commit()
}

// A change is what is going to be.
type change struct {
	p         *Proxy
	upstreams map[string]*upstream
	added     []*upstream
	options   map[*upstream]UpstreamOptions // of those that stay
	listeners []plannedListener
	goes      []*listener
}

type plannedListener struct {
	l      *listener
	terms  *listenerSettings
	isNew  bool
	socket *net.TCPListener // of a new one
}

func (c *change) planUpstreams(all []UpstreamOptions) error {
	var errs []error
	for _, o := range all {
		if c.upstreams[o.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", o.Name))
			continue
		}
		if u := c.p.allUpstreams()[o.Name]; u != nil && u.isRDMA == o.RDMA && u.settings().Source == o.Source && u.settings().stays(&o) {
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
	c.goes = slices.Clone(c.p.currentListeners())
	for _, o := range all {
		var x plannedListener
		i := slices.IndexFunc(c.goes, func(l *listener) bool {
			return l.name == o.Name && l.address == o.Address && l.isRDMA == o.RDMA
		})
		if i >= 0 {
			x.l = c.goes[i]
			c.goes = slices.Delete(c.goes, i, i+1)
		} else {
			x.l, x.isNew = newListener(c.p, o), true
		}
		var err error
		if x.terms, err = x.l.newSettings(o, c.upstreams); err != nil {
			errs = append(errs, err)
		}
		c.listeners = append(c.listeners, x)
	}
	return errors.Join(errs...)
}

// open finds a socket for each listener that is new.
func (c *change) open() error {
	taken := make(map[*listener]bool)
	var errs []error
	for i := range c.listeners {
		x := &c.listeners[i]
		if !x.isNew {
			continue
		}
		if _, ok := x.terms.opts.Provider.(fabric.SocketProvider); x.l.isRDMA && !ok {
			continue // it will see
		}
		var err error
		for _, l := range c.goes {
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

// share is another descriptor of the listening socket, nil if it has none.
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

// undo gives back what was opened.
func (c *change) undo() {
	for _, x := range c.listeners {
		if x.socket != nil {
			_ = x.socket.Close()
		}
	}
}

func (c *change) commit() error {
	p := c.p
	p.mu.Lock()
	old := p.upstreams
	p.upstreams = c.upstreams
	p.listeners = make([]*listener, len(c.listeners))
	for i, x := range c.listeners {
		p.listeners[i] = x.l
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(l *listener) bool { return l.clientCount() == 0 })
	p.leaving = slices.Concat(p.leaving, c.goes)
	var gone []*upstream
	for _, u := range old {
		if c.upstreams[u.name] != u && !p.closed {
			gone = append(gone, u)
			p.retired[u] = struct{}{}
			p.retiring.Add(1)
		}
	}
	p.mu.Unlock()

	for u, o := range c.options {
		u.update(o)
	}
	p.sharePins()
	for _, u := range c.added {
		u.describe()
		for _, up := range u.pools {
			up.Start()
		}
	}
	for _, l := range c.goes {
		l.stopListening()
	}
	var errs []error
	for _, x := range c.listeners {
		if !x.isNew {
			x.l.update(x.terms)
			continue
		}
		x.l.current.Store(x.terms)
		if err := x.l.start(p.ctx, x.socket); err != nil {
			errs = append(errs, fmt.Errorf("proxy: listener %s: %w", x.l.name, err))
		}
	}
	for _, l := range c.goes {
		l.log.Info().Str("address", l.addr()).Int("clients", l.clientCount()).Msg("listener removed")
		l.drain()
	}
	for _, u := range gone {
		go p.retire(u)
	}
	return errors.Join(errs...)
}

// retireLook is how often retire looks whether an upstream has Calls.
const retireLook = 20 * time.Millisecond

// retire ends an upstream that no terms name any more, when its last Call is done, or
// after all the time that a Call may wait and be waited for.
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
			u.log.Warn().Int("calls", n).Msg("upstream removed with calls under way; their clients are closed")
			waiting = false
		case <-t.C:
		}
	}
	u.close()
	p.mu.Lock()
	delete(p.retired, u)
	p.mu.Unlock()
	u.log.Info().Msg("upstream removed")
}

// underWay is how many Calls u has, at least, for an upstream to which none come any
// more. A pass of every loop is waited for, in which a Call that was routed by old
// terms has been counted. It reports false when the Proxy is closed.
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

// StopAccepting stops listening and leaves clients as they are, those included that
// are just connecting. Somebody else has the sockets. Drain follows.
func (p *Proxy) StopAccepting() {
	for _, l := range p.currentListeners() {
		l.stopAccepting()
	}
}

// A Socket is one that listens. File returns another descriptor of it, as that of
// net.TCPListener does.
type Socket interface {
	File() (*os.File, error)
}

// Sockets are the listening sockets, by the addresses that the listeners were given:
// for who hands them to another process.
func (p *Proxy) Sockets() map[string]Socket {
	sockets := make(map[string]Socket)
	for _, l := range p.currentListeners() {
		if s := l.socket(); s != nil {
			sockets[l.address] = s
		}
	}
	return sockets
}
