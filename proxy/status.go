package proxy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// Status describes the Proxy. It fills in what the Proxy knows: not the process, its configuration, its
// problems, and its history. It asks the loops, and waits for them for a second at most. Any goroutine, but
// no loop.
func (p *Proxy) Status(q status.Query) status.Document {
	p.looking.Lock()
	defer p.looking.Unlock()
	d := status.Document{State: status.Ready}
	draining := p.inventory.drains()
	if err := p.Ready(); err != nil {
		d.State, d.NotReady = status.NotReady, err.Error()
	}
	if draining {
		d.State = status.Draining
	}
	by := observe.NewAsker(p.loops.all())
	found := p.collect(by)
	d.Operations = p.operationStatus(found)
	for _, l := range p.CurrentListeners() {
		d.Listeners = append(d.Listeners, l.Status(reportsOf(l, found), d.Operations))
	}
	d.Tenants = p.tenantStatus(found)
	for _, l := range p.AllListeners() {
		d.Clients.Total += l.ClientCount()
	}
	total := d.Clients.Total
	d.Clients = p.clients(by, found, &q)
	d.Clients.Total = total
	for _, u := range p.sortedUpstreams() {
		d.Upstreams = append(d.Upstreams, u.Status(by, q.Connections, d.Operations))
	}
	d.Memory = p.memoryStatus()
	d.Time = time.Now()
	return d
}

// reportsOf returns what the loops have found of l.
func reportsOf(l *listener.Listener, found []*collector) (all []listener.Report) {
	for _, c := range found {
		all = append(all, c.listened[l])
	}
	return all
}

// operationStatus describes all operations that were used.
func (p *Proxy) operationStatus(found []*collector) []status.Operation {
	return p.operations.Status(func(s *observe.Series) (n int) {
		for _, c := range found {
			n += c.inFlight[s]
		}
		return n
	})
}

func (p *Proxy) memoryStatus() status.Memory {
	st := p.arena.Stats()
	m := status.Memory{Budget: st.Budget, Used: st.Used, Resident: st.Resident, Waiting: st.Waiting}
	for _, a := range st.Accounts {
		m.Accounts = append(m.Accounts, status.Account(a))
		m.Refused += a.Refused
	}
	return m
}

func (p *Proxy) sortedUpstreams() []*upstream.Upstream {
	return slices.SortedFunc(maps.Values(p.allUpstreams()), func(a, b *upstream.Upstream) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// Ready is nil when every upstream that a listener needs has a usable connection, or needs none because all its
// connections sleep, and the Proxy is not draining. Otherwise it says what is missing.
func (p *Proxy) Ready() error {
	if p.inventory.drains() {
		return errors.New("draining")
	}
	var errs []error
	seen := make(map[*upstream.Upstream]bool)
	for _, l := range p.CurrentListeners() {
		for _, u := range l.Upstreams() {
			if seen[u] {
				continue
			}
			seen[u] = true
			if u.IsDown() {
				errs = append(errs, fmt.Errorf("upstream %s has no usable connection", u.Name))
			}
		}
	}
	return errors.Join(errs...)
}
