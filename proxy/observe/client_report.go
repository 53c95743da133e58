package observe

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A ClientReport is what a loop says of a client connection. The loop copies what it has; all that allocates happens
// on the goroutine that asks.
type ClientReport struct {
	Seen      Client // a snapshot
	Peer      netip.AddrPort
	Proxy     netip.AddrPort // of the proxy that has made the connection for the client; not valid for none
	Listener  string
	RDMA      bool
	Tenant    string    // "" for none
	Upstreams [2]string // those that the client has used first; "" for none
	Unread    int64     // octets of the Replies that the client does not read
	Waits     uint16    // why the bridge does not read from the client, a bit for each reason
	Paused    int64     // for how long it has not, in nanoseconds
	Granted   int       // credits of an RDMA client
	Used      int
	TLS       bool
	Identity  Identity // nil without TLS
}

// An Identity is who a client's certificate says it is.
type Identity interface {
	// Names are the names in the certificate.
	Names() []string
	// Status describes TLS with the client.
	Status() *status.TLS
}

// Describe describes the client at now, on the clock of the loops, which is wall. reasons are the names of the bits of
// Waits.
func (r *ClientReport) Describe(now int64, wall time.Time, reasons []string) status.Client {
	d := status.Client{
		Address: r.Peer.String(), Listener: r.Listener, Transport: Transport(r.RDMA), Tenant: r.Tenant,
		Unread: r.Unread, Waiting: []string{}, Upstreams: []string{}, Paused: float64(r.Paused) / 1e9,
	}
	r.Seen.describe(&d, now, wall)
	if r.Proxy.IsValid() {
		d.Proxy = r.Proxy.String()
	}
	if r.TLS {
		d.TLS = r.Identity.Status()
	}
	for i, name := range reasons {
		if r.Waits&(1<<i) != 0 {
			d.Waiting = append(d.Waiting, name)
		}
	}
	for _, u := range r.Upstreams {
		if u != "" {
			d.Upstreams = append(d.Upstreams, u)
		}
	}
	if r.RDMA {
		d.Credits = &status.ClientCredits{Granted: r.Granted, Used: r.Used}
	}
	return d
}

// Transport names the transport of a listener or an upstream.
func Transport(isRDMA bool) string {
	if isRDMA {
		return "rdma"
	}
	return "tcp"
}

// Matches returns what status.Query.Filter asks for.
func Matches(filter string) func(*ClientReport) bool {
	filter = strings.ToLower(strings.TrimSpace(filter))
	if filter == "" {
		return func(*ClientReport) bool { return true }
	}
	if net, err := netip.ParsePrefix(filter); err == nil {
		return func(r *ClientReport) bool { return net.Contains(r.Peer.Addr().Unmap()) }
	}
	return func(r *ClientReport) bool {
		words := []string{r.Peer.String(), r.Listener, Transport(r.RDMA), r.Tenant, r.Upstreams[0], r.Upstreams[1]}
		if r.Identity != nil {
			words = append(words, r.Identity.Names()...)
		}
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(w), filter) })
	}
}

// Order returns the order that status.Query.Sort asks for.
func Order(by string) func(a, b *ClientReport) int {
	address := func(a, b *ClientReport) int { return a.Peer.Compare(b.Peer) }
	oldest := func(a, b *ClientReport) int { return cmp.Compare(a.Seen.oldestCall(), b.Seen.oldestCall()) }
	waiting := func(a, b *ClientReport) int {
		held := func(r *ClientReport) int { return min(1, int(r.Waits)) }
		return cmp.Or(cmp.Compare(held(b), held(a)), cmp.Compare(b.Unread, a.Unread), oldest(a, b), address(a, b))
	}
	var first func(a, b *ClientReport) int
	switch by {
	case status.SortBytes:
		first = func(a, b *ClientReport) int { return cmp.Compare(b.Seen.in+b.Seen.out, a.Seen.in+a.Seen.out) }
	case status.SortOldest:
		first = oldest
	case status.SortCalls:
		first = func(a, b *ClientReport) int { return cmp.Compare(b.Seen.calls, a.Seen.calls) }
	case status.SortAddress:
		return address
	default:
		return waiting
	}
	return func(a, b *ClientReport) int { return cmp.Or(first(a, b), waiting(a, b)) }
}

// TCPStatus describes a TCP connection, or returns nil if ok is false.
func TCPStatus(t loop.TCP, ok bool) *status.TCP {
	if !ok {
		return nil
	}
	away := 0
	if t.Away {
		away = 1
	}
	return &status.TCP{
		RTT: t.RTT.Seconds(), Retransmits: t.Retransmits, Needless: t.Needless, Segments: t.Segments, Received: t.Received,
		OutOfOrder: t.OutOfOrder, Unacked: t.Unacked, Unsent: t.Unsent, Unread: t.Unread, Away: away,
	}
}
