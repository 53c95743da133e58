package action

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// eject takes an endpoint out of use.
func (h *Handler) eject(q Request) (Answer, error) {
	wait, err := q.duration()
	if err != nil {
		return Answer{}, err
	}
	n := h.connectionsTo(q.Upstream, q.Endpoint)
	if err := h.Proxy.Eject(q.Upstream, q.Endpoint, wait); err != nil {
		return Answer{}, notPossible("%v%s", err, h.alternatives(q.Upstream))
	}
	end := "until rdmabridge return says so"
	if wait > 0 {
		end = "until " + time.Now().Add(wait).Format(time.RFC3339)
	}
	return Answer{Count: n, Done: fmt.Sprintf("upstream %s does not use endpoint %s %s; %s to it replaced after their last Call",
		q.Upstream, q.Endpoint, end, isAre(n, "connection"))}, nil
}

// endEjection ends an ejection.
func (h *Handler) endEjection(q Request) (Answer, error) {
	if err := h.Proxy.Return(q.Upstream, q.Endpoint); err != nil {
		return Answer{}, notPossible("%v%s", err, h.alternatives(q.Upstream))
	}
	return Answer{Done: fmt.Sprintf("upstream %s uses endpoint %s again", q.Upstream, q.Endpoint)}, nil
}

// disconnect closes the connections of clients.
func (h *Handler) disconnect(q Request) (Answer, error) {
	n, err := h.Proxy.Disconnect(q.Client, "operator")
	if err != nil {
		return Answer{}, notPossible("%v", err)
	}
	if n == 0 {
		return Answer{}, notPossible("no client is connected from %s; rdmabridge clients lists those that are", q.Client)
	}
	return Answer{Count: n, Done: fmt.Sprintf("closed %s of %s", show.Plural(n, "connection"), q.Client)}, nil
}

// isAre returns "1 connection is" or "2 connections are".
func isAre(n int, thing string) string {
	if n == 1 {
		return show.Plural(n, thing) + " is"
	}
	return show.Plural(n, thing) + " are"
}

// connectionsTo counts the connections to an endpoint.
func (h *Handler) connectionsTo(upstream, endpoint string) int {
	for _, u := range h.Proxy.Status(cheap).Upstreams {
		for _, e := range u.Endpoints {
			if u.Name == upstream && e.Address == endpoint {
				return e.Connections
			}
		}
	}
	return 0
}

// alternatives names the upstreams, or the endpoints of the upstream that there is.
func (h *Handler) alternatives(upstream string) string {
	var names []string
	what := "upstreams"
	for _, u := range h.Proxy.Status(cheap).Upstreams {
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
	switch {
	case what == "endpoints":
		return "; its endpoints: " + strings.Join(names, ", ")
	case len(names) == 1:
		return "; name " + names[0] + ", which is the only one"
	}
	return "; there are " + strings.Join(names, ", ")
}
