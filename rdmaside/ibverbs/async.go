//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"
)

// An asyncKind is a kind of asynchronous event: enum ibv_event_type.
type asyncKind int

const (
	asyncCQError     asyncKind = 0
	asyncQPFatal     asyncKind = 1
	asyncQPRequest   asyncKind = 2
	asyncQPAccess    asyncKind = 3
	asyncDeviceFatal asyncKind = 8
	asyncPortActive  asyncKind = 9
	asyncPortError   asyncKind = 10
	asyncLIDChange   asyncKind = 11
	asyncPKeyChange  asyncKind = 12
	asyncSMChange    asyncKind = 13
	asyncReregister  asyncKind = 17
	asyncGIDChange   asyncKind = 18
	asyncKinds                 = 19
)

// asyncNames has the kinds that are logged and counted. Others, such as the first message on a
// queue pair, say nothing new.
var asyncNames = [asyncKinds]string{
	asyncCQError: "cq_error", asyncQPFatal: "qp_fatal", asyncQPRequest: "qp_request", asyncQPAccess: "qp_access",
	asyncDeviceFatal: "device_fatal", asyncPortActive: "port_active", asyncPortError: "port_down",
	asyncLIDChange: "lid_change", asyncPKeyChange: "pkey_change", asyncSMChange: "sm_change",
	asyncReregister: "client_reregister", asyncGIDChange: "gid_change",
}

func (k asyncKind) known() bool { return k >= 0 && k < asyncKinds && asyncNames[k] != "" }

func (k asyncKind) String() string { return strings.ReplaceAll(asyncNames[k], "_", " ") }

// An asyncError ends a connection whose queues the device has given up.
type asyncError struct {
	device string
	kind   asyncKind
}

func (e *asyncError) Error() string { return fmt.Sprintf("ibverbs: device %s: %v", e.device, e.kind) }

// A watcher reads the events of a device. librdmacm opens each device once for the whole process, so
// that all Providers share the events of a device, and a watcher is of the process.
type watcher struct {
	context uint64
	poller  *poller
	donec   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards domains; taken before domain.mu
	domains map[*domain]struct{}
}

var watchers = struct {
	mu sync.Mutex // taken after engine.mu, and before watcher.mu
	of map[uint64]*watcher
}{of: make(map[uint64]*watcher)}

// watch hands d the events of its device, until unwatch.
func watch(d *domain) error {
	watchers.mu.Lock()
	defer watchers.mu.Unlock()
	w := watchers.of[d.context]
	if w == nil {
		fd, err := openAsync(d.context)
		if err != nil {
			return fmt.Errorf("ibverbs: device %s: descriptor of events: %w", d.dev.name, err)
		}
		po, err := newPoller(fd, "events of "+d.dev.name)
		if err != nil {
			return err
		}
		w = &watcher{context: d.context, poller: po, donec: make(chan struct{}), domains: make(map[*domain]struct{})}
		w.skip()
		watchers.of[d.context] = w
		go w.run()
	}
	w.mu.Lock()
	w.domains[d] = struct{}{}
	w.mu.Unlock()
	return nil
}

// unwatch undoes watch. It may be called without one.
func unwatch(d *domain) {
	watchers.mu.Lock()
	defer watchers.mu.Unlock()
	w := watchers.of[d.context]
	if w == nil {
		return
	}
	w.mu.Lock()
	delete(w.domains, d)
	last := len(w.domains) == 0
	w.mu.Unlock()
	if last {
		delete(watchers.of, d.context)
		w.poller.stop()
		<-w.donec
		w.poller.close()
	}
}

// skip drops the events of the time when nobody had a connection on the device.
func (w *watcher) skip() {
	for {
		_, ack, err := nextAsync(w.context)
		if err != nil {
			return
		}
		ack()
	}
}

// run hands out events until unwatch.
func (w *watcher) run() {
	defer close(w.donec)
	for {
		var ev asyncEvent
		var ack func()
		var err error
		if w.poller.wait(func() bool {
			ev, ack, err = nextAsync(w.context)
			return !errors.Is(err, syscall.EAGAIN)
		}) != nil {
			return
		}
		switch {
		case err == nil:
			w.mu.Lock()
			for d := range w.domains {
				d.async(ev)
			}
			w.mu.Unlock()
			ack()
		case !errors.Is(err, syscall.EINTR):
			return // the device is gone; its connections get an event of the connection manager
		}
	}
}

// async handles an event of the device. It must not block.
func (d *domain) async(ev asyncEvent) {
	if !ev.kind.known() {
		return
	}
	var hit []*conn
	d.mu.RLock()
	for _, c := range d.conns {
		if ev.ends(c) {
			hit = append(hit, c)
		}
	}
	d.mu.RUnlock()
	switch ev.kind {
	case asyncCQError, asyncQPFatal, asyncQPRequest, asyncQPAccess:
		if len(hit) == 0 {
			return // another Provider's
		}
	case asyncDeviceFatal:
		d.dead.Store(true)
	}
	d.e.p.logEvent(d, ev)
	for _, c := range hit {
		c.id.deliver(cmEvent{broken: &asyncError{d.dev.name, ev.kind}})
	}
}

// ends says whether the event ends c.
func (ev *asyncEvent) ends(c *conn) bool {
	switch ev.kind {
	case asyncCQError:
		return c.cq == ev.object
	case asyncQPFatal, asyncQPRequest, asyncQPAccess:
		return c.qp == ev.object
	}
	return ev.kind == asyncDeviceFatal
}

// logEvent counts an event of a device, and logs it.
func (p *Provider) logEvent(d *domain, ev asyncEvent) {
	p.events[ev.kind].Add(1)
	level := zerolog.WarnLevel
	switch ev.kind {
	case asyncPortActive, asyncGIDChange, asyncSMChange, asyncLIDChange, asyncPKeyChange, asyncReregister:
		level = zerolog.InfoLevel
	}
	e := p.lines.Line(&p.opts.Log, level, "rdma_device_event").Str("device", d.dev.name).Stringer("kind", ev.kind)
	if ev.kind >= asyncPortActive {
		e = e.Uint64("port", ev.object)
	}
	e.Msg("event of an RDMA device")
}

// DeviceEvents implements fabric.DeviceEventCounter.
func (p *Provider) DeviceEvents() map[string]func() uint64 {
	m := make(map[string]func() uint64)
	for k, name := range asyncNames {
		if name != "" {
			m[name] = p.events[k].Load
		}
	}
	return m
}
