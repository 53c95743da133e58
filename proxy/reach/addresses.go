package reach

import (
	"context"
	"errors"
	"maps"
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

// A LookUp finds the addresses of a host, like the method LookupNetIP of net.Resolver. network is "ip".
type LookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)

// Addresses remember which address of each name worked last. That means that the server there answered a Call of a
// client: some accept connections and answer nothing, or NULL Calls alone, or end them. A server knows its clients,
// and the bridge among them, by their addresses: if a name has an IPv4 and an IPv6 address and a reconnect took the
// other one, the server's duplicate request cache would not know a repeated Call. They are safe for concurrent use.
type Addresses struct {
	lookUp LookUp // constant

	mu    sync.Mutex             // a leaf
	names map[string]*addressUse // by endpoint: servers on several ports of a host are several
}

// NewAddresses makes addresses of which nothing is known. lookUp may be nil: the host's resolver looks names up.
func NewAddresses(lookUp LookUp) *Addresses {
	if lookUp == nil {
		lookUp = net.DefaultResolver.LookupNetIP
	}
	return &Addresses{lookUp: lookUp, names: make(map[string]*addressUse)}
}

// An addressUse is what is known of the addresses of one name. It is guarded by Addresses.mu.
type addressUse struct {
	worked netip.Addr   // the server there answered a Call last; before the first, where it answered a NULL Call
	at     time.Time    // when it answered a Call
	mute   []netip.Addr // the last connection to these has ended without the answer that it wanted; the oldest first
}

// of returns what is known of the addresses of endpoint. l.mu is held.
func (l *Addresses) of(endpoint string) *addressUse {
	n := l.names[endpoint]
	if n == nil {
		n = new(addressUse)
		l.names[endpoint] = n
	}
	return n
}

// Keep forgets all names but those of endpoints.
func (l *Addresses) Keep(endpoints []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.names, func(name string, _ *addressUse) bool { return !slices.Contains(endpoints, name) })
}

// order sorts addrs, which are those of endpoint now, in the order in which they are tried: the one that
// worked last, then the others in the resolver's order, which is that of RFC 6724, and then those that
// did not answer.
func (l *Addresses) order(endpoint string, addrs []netip.Addr) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of(endpoint)
	n.mute = slices.DeleteFunc(n.mute, func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
	rank := func(a netip.Addr) int {
		if i := slices.Index(n.mute, a); i >= 0 {
			return 2 + i
		}
		if a == n.worked {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	return addrs
}

// An Trial is a connection to one address of a name, whose server has yet to answer a Call of a client.
// Its methods do nothing if it is nil: the endpoint is an address itself. It belongs to the connection's loop.
type Trial struct {
	l        *Addresses // constant, as the next three
	endpoint string
	addr     netip.Addr
	began    time.Time
	primed   bool // the server has answered a NULL Call
	carried  bool // the connection has carried a Call of a client
}

// answeredNull notes that the server has answered a NULL Call.
func (t *Trial) answeredNull() {
	if t == nil {
		return
	}
	t.primed = true
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if n := t.l.of(t.endpoint); !n.worked.IsValid() {
		n.worked = t.addr
	}
}

// answered notes that the server has answered a Call of a client.
func (t *Trial) answered() {
	if t == nil {
		return
	}
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	n := t.l.of(t.endpoint)
	n.worked, n.at = t.addr, time.Now()
	n.mute = slices.DeleteFunc(n.mute, t.is)
}

// ended notes that the connection has ended with err and the server has not answered what it was asked. That
// counts against the address, unless the bridge did not want the connection any more, or the server has answered a
// Call on another one meanwhile.
func (t *Trial) ended(err error) {
	if t == nil || t.primed && !t.carried || err == nil || errors.Is(err, pool.ErrClosed) || IsLocal(err) {
		return
	}
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	n := t.l.of(t.endpoint)
	if t.is(n.worked) && n.at.After(t.began) {
		return
	}
	n.mute = append(slices.DeleteFunc(n.mute, t.is), t.addr)
}

func (t *Trial) is(a netip.Addr) bool { return a == t.addr }

// A Dial connects to addr, a host:port, and has the connection tell t, which may be nil, whether the server answers.
type Dial func(ctx context.Context, addr string, t *Trial) (pool.Member, error)

// Dial calls dial for seat s with one address of endpoint after the other until one connects. It passes
// an endpoint that is no host:port on as it is.
func (l *Addresses) Dial(ctx context.Context, endpoint string, s *pool.Seat, dial Dial) (pool.Member, error) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return dial(ctx, endpoint, nil)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, endpoint, nil)
	}
	addrs, err := l.lookUp(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	if len(addrs) > 1 {
		s.Others()
	}
	return tryAll(ctx, l.order(endpoint, addrs), func(ctx context.Context, a netip.Addr) (pool.Member, error) {
		t := &Trial{l: l, endpoint: endpoint, addr: a, began: time.Now()}
		return dial(ctx, net.JoinHostPort(a.String(), port), t)
	})
}

// tryAll calls dial with one address after the other, and gives each its part of the time
// that is left.
func tryAll(
	ctx context.Context, addrs []netip.Addr, dial func(context.Context, netip.Addr) (pool.Member, error),
) (pool.Member, error) {
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
		if ctx.Err() != nil || IsLocal(err) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break // another address would fail for the same reason
		}
	}
	return nil, errors.Join(errs...)
}

// IsLocal reports whether err, with which an attempt to connect failed, is a lack of this host's:
// of descriptors, memory, or source ports. It says nothing about the server.
func IsLocal(err error) bool {
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
