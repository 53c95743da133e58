package listener

import (
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// A Settings is the part of a listener that Reconfigure can change. It never changes
// itself: Reconfigure replaces it, and later Calls and connections see the new one. Clients
// keep copies of their weights and rate limits, and listener.follow has them updated.
type Settings struct {
	Opts      settings.ListenerOptions
	Path      ulb.Path // what the way between the clients and their servers carries
	Routes    routes
	Policy    *authorise.Policy    // nil for none
	Ruled     []*upstream.Upstream // where the rules of policy send Calls, by their index; nil where the routes decide
	maxOwed   int64                // octets of Replies that one client may be owed before it has to wait
	Rates     *gates.Rates         // nil for no limit
	responder *rdmaside.Responder  // accepts RDMA clients; nil for TCP
}

// Upstreams returns every upstream that a Call may go to.
func (t *Settings) Upstreams() []*upstream.Upstream {
	us := t.Routes.all()
	for _, u := range t.Ruled {
		if u != nil && !slices.Contains(us, u) {
			us = append(us, u)
		}
	}
	return us
}

// Bounds are how much one client may have under way.
func (t *Settings) Bounds() admit.Bounds {
	return admit.Bounds{Calls: t.Opts.MaxCalls, Replies: t.maxOwed}
}

// TLS is how clients use TLS; nil: they cannot.
func (t *Settings) TLS() *settings.ListenerTLS { return t.Opts.TLS }

// MakesRoom reports whether a client of the address with the most gives way to a newcomer.
func (t *Settings) MakesRoom() bool { return t.Opts.MakeRoom }

// Weight is the weight of a client at a.
func (t *Settings) Weight(a netip.Addr) int {
	for _, w := range t.Opts.Weights {
		for _, p := range w.Clients {
			if p.Contains(a) {
				return w.Weight
			}
		}
	}
	return 1
}
