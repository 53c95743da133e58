package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// actEject takes an endpoint out of use.
func (b *bridge) actEject(q actionRequest) (actionAnswer, error) {
	wait, err := q.duration()
	if err != nil {
		return actionAnswer{}, err
	}
	n := b.connectionsTo(q.Upstream, q.Endpoint)
	if err := b.proxy.Eject(q.Upstream, q.Endpoint, wait); err != nil {
		return actionAnswer{}, notPossible("%v%s", err, b.alternatives(q.Upstream))
	}
	end := "until rdmabridge return says so"
	if wait > 0 {
		end = "until " + time.Now().Add(wait).Format(time.RFC3339)
	}
	return actionAnswer{Count: n, Done: fmt.Sprintf("upstream %s does not use endpoint %s %s; %s to it replaced after their last Call",
		q.Upstream, q.Endpoint, end, isAre(n, "connection"))}, nil
}

// actReturn ends an ejection.
func (b *bridge) actReturn(q actionRequest) (actionAnswer, error) {
	if err := b.proxy.Return(q.Upstream, q.Endpoint); err != nil {
		return actionAnswer{}, notPossible("%v%s", err, b.alternatives(q.Upstream))
	}
	return actionAnswer{Done: fmt.Sprintf("upstream %s uses endpoint %s again", q.Upstream, q.Endpoint)}, nil
}

// actDisconnect closes the connections of clients.
func (b *bridge) actDisconnect(q actionRequest) (actionAnswer, error) {
	n, err := b.proxy.Disconnect(q.Client, "operator")
	if err != nil {
		return actionAnswer{}, notPossible("%v", err)
	}
	if n == 0 {
		return actionAnswer{}, notPossible("no client is connected from %s; rdmabridge clients lists those that are", q.Client)
	}
	return actionAnswer{Count: n, Done: fmt.Sprintf("closed %s of %s", show.Plural(n, "connection"), q.Client)}, nil
}

// isAre returns "1 connection is" or "2 connections are".
func isAre(n int, thing string) string {
	if n == 1 {
		return show.Plural(n, thing) + " is"
	}
	return show.Plural(n, thing) + " are"
}

// connectionsTo counts the connections to an endpoint.
func (b *bridge) connectionsTo(upstream, endpoint string) int {
	for _, u := range b.proxy.Status(oneClient).Upstreams {
		for _, e := range u.Endpoints {
			if u.Name == upstream && e.Address == endpoint {
				return e.Connections
			}
		}
	}
	return 0
}

// alternatives names the upstreams, or the endpoints of the upstream that there is.
func (b *bridge) alternatives(upstream string) string {
	var names []string
	what := "upstreams"
	for _, u := range b.proxy.Status(oneClient).Upstreams {
		if u.Name == upstream {
			names, what = nil, "endpoints"
			for _, e := range u.Endpoints {
				state := ""
				if e.State == status.EndpointEjected {
					state = " (ejected)"
				}
				names = append(names, e.Address+state)
			}
			break
		}
		names = append(names, u.Name)
	}
	if what == "upstreams" {
		return "; there are " + strings.Join(names, ", ")
	}
	return "; its endpoints: " + strings.Join(names, ", ")
}
