package proxy

import (
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
// took the other one, the server's duplicate request cache would not know a repeated Call. It is
// safe for concurrent use.
type addresses struct {
	mu     sync.Mutex
	worked map[string]netip.Addr // by host name
}

// order returns addrs in the order in which they are tried: the one that worked last, and then
// the others in the resolver's order, which is that of RFC 6724.
func (l *addresses) order(host string, addrs []netip.Addr) []netip.Addr {
	l.mu.Lock()
	last, ok := l.worked[host]
	l.mu.Unlock()
	if i := slices.Index(addrs, last); ok && i > 0 {
		copy(addrs[1:], addrs[:i])
		addrs[0] = last
	}
	return addrs
}

// remember notes that a worked.
func (l *addresses) remember(host string, a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.worked == nil {
		l.worked = make(map[string]netip.Addr)
	}
	l.worked[host] = a
}

// dialEach calls dial with one address of endpoint after the other until one connects. It passes
// an endpoint that is no host:port on as it is.
func (l *addresses) dialEach(ctx context.Context, endpoint string, dial func(ctx context.Context, addr string) (pool.Member, error)) (pool.Member, error) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return dial(ctx, endpoint)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, endpoint)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return tryAll(ctx, l.order(host, addrs), func(ctx context.Context, a netip.Addr) (pool.Member, error) {
		m, err := dial(ctx, net.JoinHostPort(a.String(), port))
		if err == nil {
			l.remember(host, a)
		}
		return m, err
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
