package proxy_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/proxy"
)

// TestLaneMute: no NFSv4.1 client is given to a lane whose server accepts connections and answers nothing, while
// another lane has a server that answers.
func TestLaneMute(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int32
	t.Cleanup(func() { l.Close() })
	go func() {
		for nc, err := l.Accept(); err == nil; nc, err = l.Accept() {
			defer nc.Close()
			accepted.Add(1)
		}
	}()
	x := newLaneWorld(t, 1, false, nfs4test.ServerOptions{}, func(_ *proxy.ListenerOptions, uo *proxy.UpstreamOptions, _ *nfs4test.ClientsOptions) {
		uo.Endpoints = append(uo.Endpoints, l.Addr().String())
		uo.Failover, uo.Connections, uo.ConnectTimeout = true, 2, time.Hour
	})
	join := func(name string, n int) *nfs4test.Clients {
		o := x.clients
		o.Prefix = name
		cs := nfs4test.NewClients(n, o)
		t.Cleanup(cs.Close)
		cs.Start()
		return cs
	}
	second := join("second", 1)
	x.Eventually("one lane serves, and the other is connected to a server that answers nothing", func() bool {
		return x.cs.Up()+second.Up() == 1 && accepted.Load() > 0
	})
	time.Sleep(2 * time.Second) // a connection that was made just now counts as one that serves
	for range 4 {
		more := join("more", 4)
		x.Eventually("clients that come now are served", func() bool { return more.Up() == more.Len() })
		more.Close()
	}
}
