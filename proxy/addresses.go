package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// leastDial is the least time that one of several addresses gets to answer.
const leastDial = 2 * time.Second

// addresses remember which address of each name worked last. A server knows its clients, and the
// bridge among them, by their addresses: if a name has an IPv4 and an IPv6 address and a reconnect
// took the other one, the server's duplicate request cache would not know a repeated Call. An address has
// worked when the server there has answered: some accept connections and answer nothing. It is
// safe for concurrent use.
type addresses struct {
	mu sync.Mutex // a leaf
	of map[string]*nameAddresses
}

// nameAddresses are what addresses remember of one name.
type nameAddresses struct {
	worked  netip.Addr
	missed  []netip.Addr // of those that the name had last: where the last connection got no answer, longest ago first
	several bool         // the name had several
}

// An address is one address of a name. The zero address is that of an endpoint without a name.
type address struct {
	name string
	addr netip.Addr
}

// name returns what is known of a name. mu is held.
func (l *addresses) name(host string) *nameAddresses {
	n := l.of[host]
	if n == nil {
		if l.of == nil {
			l.of = make(map[string]*nameAddresses)
		}
		n = &nameAddresses{}
		l.of[host] = n
	}
	return n
}

// order returns addrs in the order in which they are tried: the one that worked last, then the others in the
// resolver's order, which is that of RFC 6724, and last those where the server has not answered.
func (l *addresses) order(host string, addrs []netip.Addr) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.name(host)
	n.several = len(addrs) > 1
	n.missed = slices.DeleteFunc(n.missed, func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
	rank := func(a netip.Addr) int {
		if i := slices.Index(n.missed, a); i >= 0 {
			return 1 + i
		}
		if a == n.worked {
			return -1
		}
		return 0
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(rank(a), rank(b)) })
	return addrs
}

// answered notes that the server at a has answered.
func (l *addresses) answered(a address) {
	if a.name == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.name(a.name)
	n.worked = a.addr
	n.missed = slices.DeleteFunc(n.missed, func(m netip.Addr) bool { return m == a.addr })
}

// missed notes that a connection to a has ended before the server had answered.
func (l *addresses) missed(a address) {
	if a.name == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.name(a.name)
	n.missed = append(slices.DeleteFunc(n.missed, func(m netip.Addr) bool { return m == a.addr }), a.addr)
}

// several reports whether the name of endpoint had several addresses when it was dialled last.
func (l *addresses) several(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[host]
	return n != nil && n.several
}

// dialEach calls dial with one address of endpoint after the other until one connects. It passes
// an endpoint that is no host:port on as it is. Who has the connection calls answered or missed.
func (l *addresses) dialEach(ctx context.Context, endpoint string, dial func(ctx context.Context, addr string, at address) (pool.Member, error)) (pool.Member, error) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return dial(ctx, endpoint, address{})
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, endpoint, address{})
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return tryAll(ctx, l.order(host, addrs), func(ctx context.Context, a netip.Addr) (pool.Member, error) {
		return dial(ctx, net.JoinHostPort(a.String(), port), address{host, a})
	})
}

// tryAll calls dial with one address after the other, and gives each its part of the time
// that is left.
func tryAll(ctx context.Context, addrs []netip.Addr, dial func(context.Context, netip.Addr) (pool.Member, error)) (pool.Member, error) {
	var errs []error
	for i, a := range addrs {
		part, cancel := ctx, func() {}
		if end, ok := ctx.Deadline(); ok && i < len(addrs)-1 {
			each := max(time.Until(end)/time.Duration(len(addrs)-i), leastDial)
			part, cancel = context.WithTimeout(ctx, each)
		}
		m, err := dial(part, a)
		cancel()
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || isLocal(err) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break // another address would fail for the same reason
		}
	}
	return nil, errors.Join(errs...)
}

// isLocal reports whether err, with which an attempt to connect failed, is a lack of this host's:
// of descriptors, memory, or source ports. It says nothing about the server.
func isLocal(err error) bool {
	for _, lack := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL,
		tcpframe.ErrPortTaken, tcpframe.ErrPortForbidden, errPorts,
	} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}
