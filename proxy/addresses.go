package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
)

// leastDial is the least time that one of several addresses gets to answer.
const leastDial = 2 * time.Second

// eachAddress calls dial with one address of endpoint after the other, beginning with number
// turn, until one connects. It passes an endpoint that is no host:port on as it is.
func eachAddress(ctx context.Context, endpoint string, turn int, dial func(ctx context.Context, addr string) (pool.Member, error)) (pool.Member, error) {
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
	return tryAll(ctx, addrs, turn, func(ctx context.Context, a netip.Addr) (pool.Member, error) {
		return dial(ctx, net.JoinHostPort(a.Unmap().String(), port))
	})
}

// tryAll calls dial with one address after the other, and gives each its part of the time
// that is left.
func tryAll(ctx context.Context, addrs []netip.Addr, turn int, dial func(context.Context, netip.Addr) (pool.Member, error)) (pool.Member, error) {
	var errs []error
	for i := range addrs {
		part, cancel := ctx, func() {}
		if end, ok := ctx.Deadline(); ok && i < len(addrs)-1 {
			each := max(time.Until(end)/time.Duration(len(addrs)-i), leastDial)
			part, cancel = context.WithTimeout(ctx, each)
		}
		m, err := dial(part, addrs[(turn+i)%len(addrs)])
		cancel()
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}
