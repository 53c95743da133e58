package chaos

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// Bridges behind one address
//
// Sidecars are bridges with one source address, in front of one server. The duplicate request
// cache there sees their Calls as those of one client. Each has an identity of its own; nothing
// else tells them apart: their clients have one address and port, are one user, begin with one XID, and
// remove the same names in the same order. remove_test.go says how the server shows a Call that
// it has taken for another.

// sidecarMemory is how much memory a sidecar has.
const sidecarMemory = 16 << 20

// sidecars starts n bridges in front of the server at endpoint, with two clients each. The
// function that it returns ends them.
func (p *crowd) sidecars(n int, rdma bool, endpoint string) (end func()) {
	var lives []life
	ports := []int{freePort(p.world), freePort(p.world)}
	for i := range n {
		l := p.newLife(sidecarMemory)
		addr := freeAddr(p.world)
		u := settings.UpstreamOptions{Name: "storage", RDMA: rdma, Endpoints: []string{endpoint}, Connections: 1 + i%2, Credits: 32}
		if rdma {
			u.Provider = l.iwarp
		}
		var err error
		if l.proxy, err = proxy.New(proxy.Options{
			Log: l.h.Log, Metrics: l.h.Metrics, Engine: l.h.Engine, Arena: l.h.Arena, Registry: l.h.Registry, Identity: fmt.Sprintf("sidecar %d", i),
			Listeners: proxytest.Listeners(settings.ListenerOptions{Name: "in", Address: addr, Upstream: "storage", StallTimeout: stallTimeout}),
			Upstreams: proxytest.Upstreams(p.timed([]settings.UpstreamOptions{u})...),
		}); err != nil {
			p.t.Fatal(err)
		}
		if err := l.proxy.Start(context.Background()); err != nil {
			p.t.Fatal(err)
		}
		lives = append(lives, l)
		for j := range 2 {
			c := &client{
				name: fmt.Sprintf("client %d of sidecar %d", j+1, i+1), book: p.book, server: new(server), removes: true, deep: 2, pause: 10 * time.Millisecond,
				dice: p.seed.dice("sidecar", j), xid: uint32(j+1) << 18, // as those of the other sidecars
			}
			c.dial = func(ctx context.Context) (line, error) {
				return dialTCPFrom(ctx, addr, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: ports[j]})
			}
			p.running.Go(func() { c.run(p.ctx, p.end) })
		}
	}
	return func() {
		for _, l := range lives {
			p.world.end(l, time.Second)
		}
	}
}
