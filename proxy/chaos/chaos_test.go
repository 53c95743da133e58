package chaos

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// lasting is how long to break things: CHAOS_TIME, or some seconds.
func lasting(t testing.TB) time.Duration {
	if s := os.Getenv("CHAOS_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("CHAOS_TIME: %v", err)
		}
		return d
	}
	if testing.Short() {
		return 3 * time.Second
	}
	return 20 * time.Second
}

// TestChaos is everything at once.
func TestChaos(t *testing.T) {
	s := seedOf(t)
	fmt.Println(s)
	d := lasting(t)
	w := newWorld(t, s)
	addr := w.rdma("storage")
	w.start([]proxy.ListenerOptions{{
		Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage",
		Routes: []proxy.Route{{Program: proxytest.EchoProgram, Upstream: "storage"}, {Program: oncrpc.ProgramNFS, Upstream: "storage"}},
	}}, []proxy.UpstreamOptions{{Name: "storage", RDMA: true, Provider: w.iwarp, Endpoints: []string{addr}, Connections: 3, Credits: 32}})

	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	end, stop := context.WithTimeout(context.Background(), d+bound+20*time.Second)
	defer stop()
	var clients, others sync.WaitGroup
	for i := range 12 {
		dice := s.dice("client", i)
		c := &client{
			name: fmt.Sprintf("client %d", i), book: w.book, addr: w.proxy.Addr("nfs"), local: net.IPv4(127, 0, 1, byte(i+1)),
			dice: dice, deep: 1 + dice.IntN(16), gss: i%3 == 0, bound: bound,
		}
		clients.Go(func() { c.run(ctx, end) })
	}
	others.Go(func() { w.blow(ctx) })
	watching, unwatch := context.WithCancel(context.Background())
	others.Go(func() { w.watch(watching) })
	clients.Wait()
	unwatch()
	others.Wait()
	w.rest()
	w.close()
	fmt.Printf("%s: %d Calls answered in %v, %d of them with SYSTEM_ERR; %d sent again; longest wait %v\n", s, w.book.done.Load(), d, w.book.failed.Load(), w.book.again.Load(), time.Duration(w.book.slowest.Load()).Round(time.Millisecond))
	fmt.Printf("%s: %s\n", s, &w.counts)
	fmt.Println(w.logs.lines)
}
