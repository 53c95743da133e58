package chaos

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside"
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
	return 15 * time.Second
}

// TestChaos is everything at once: Responders over iWARP and in memory, a TCP
// server, clients over TCP and RDMA, and rogues.
func TestChaos(t *testing.T) {
	s, d := seedOf(t), lasting(t)
	// With little memory Calls wait for it, and clients that do not read are closed.
	memory := []int64{32 << 20, 48 << 20, budget, 256 << 20}[s.dice("budget", 0).IntN(4)]
	fmt.Printf("%s CHAOS_TIME=%v, %d MiB\n", s, d, memory>>20)
	w := newWorld(t, s, memory)
	storage, tcp, mem := newServer(w.book, true), newServer(w.book, true), newServer(w.book, false)
	inMemory := w.inMemory("memory", mem, s.dice("async", 0).IntN(2) == 0)
	addrs := make(map[string]string)
	for _, name := range []string{"to-rdma", "to-tcp", "to-memory", "rdma-to-tcp"} {
		addrs[name] = freeAddr(w)
	}
	p := newPlan(w, []proxy.ListenerOptions{
		{Name: "to-rdma", Address: addrs["to-rdma"], Upstream: "storage", StallTimeout: stallTimeout},
		{Name: "to-tcp", Address: addrs["to-tcp"], Upstream: "tcp", StallTimeout: stallTimeout},
		{Name: "to-memory", Address: addrs["to-memory"], Upstream: "memory", StallTimeout: stallTimeout},
		{Name: "rdma-to-tcp", Address: addrs["rdma-to-tcp"], RDMA: true, Provider: w.front, Upstream: "tcp", StallTimeout: stallTimeout},
	}, w.timed([]proxy.UpstreamOptions{
		{Name: "storage", RDMA: true, Provider: w.iwarp, Endpoints: []string{w.overRDMA("storage", storage)}, Connections: 3, Credits: 32},
		{Name: "tcp", Endpoints: []string{w.overTCP("tcp", tcp)}, Connections: 2, Credits: 32},
		{Name: "memory", RDMA: true, Provider: inMemory, Endpoints: []string{"memory"}, Connections: 2, Credits: 32},
	}), ways{w.overRDMA("storage too", storage), w.overTCP("storage over TCP", storage)}, ways{second: w.overTCP("tcp too", tcp)}, ways{})
	l := w.life()
	w.start(p.options(&l))
	// One time in three it is one process to the end.
	lives := s.dice("lives", 0).IntN(3) > 0
	dialer := w.h
	rdmaSky := w.newSky(&wireFaults)
	rdmaFront := w.wire("front", rdmaSky, addrs["rdma-to-tcp"], true)

	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	end, stop := context.WithTimeout(context.Background(), d+bound+20*time.Second)
	defer stop()
	var clients, others sync.WaitGroup
	n := 0
	client := func(dial func(context.Context, net.IP) (line, error), gss, v4, far bool) {
		n++
		dice, local := s.dice("client", n), net.IPv4(127, 0, 1, byte(n))
		c := &client{
			name: fmt.Sprintf("client %d", n), book: w.book, dice: dice, deep: 1 + dice.IntN(16), gss: gss, v4: v4, far: far,
			xid:  dice.Uint32N(1000), // clients have the same ones
			dial: func(ctx context.Context) (line, error) { return dial(ctx, local) },
		}
		if far {
			// These are at one address. Which of two that choose the same XID has which one
			// at the server is remembered of so many Calls only, and not by the next process.
			c.xid += uint32(n) << 18
		}
		clients.Go(func() { c.run(ctx, end) })
	}
	for i, name := range []string{"to-rdma", "to-rdma", "to-rdma", "to-tcp", "to-tcp", "to-memory", "to-memory"} {
		client(func(ctx context.Context, local net.IP) (line, error) { return dialTCP(ctx, addrs[name], local) }, i%2 == 0, i%3 == 0, false)
	}
	strange := strangers()
	for i := range 3 {
		client(func(context.Context, net.IP) (line, error) {
			c, err := dialer.DialRDMA(strange, w.clientLoop, rdmaFront, rdmaside.RequesterOptions{Credits: 16, Deadline: 8 * time.Second, Log: zerolog.Nop()})
			if err != nil {
				return nil, err
			}
			return newRDMALine(c), nil
		}, false, i == 0, true)
	}
	for i, name := range []string{"to-rdma", "to-tcp", "to-memory", "to-rdma"} {
		g := &rogue{name: fmt.Sprintf("rogue %d", i), book: w.book, counts: &w.counts, addr: addrs[name], local: net.IPv4(127, 0, 2, byte(i+1)), dice: s.dice("rogue", i)}
		clients.Go(func() { g.run(ctx) })
	}
	for i := range 2 {
		g := &rdmaRogue{book: w.book, counts: &w.counts, p: strange, loop: w.clientLoop, addr: addrs["rdma-to-tcp"], dice: s.dice("RDMA rogue", i)}
		clients.Go(func() { g.run(ctx) })
	}
	others.Go(func() { w.blow(ctx) })
	others.Go(func() { w.conduct(ctx, p, lives) })
	watching, unwatch := context.WithCancel(context.Background())
	others.Go(func() { w.watch(watching) })
	others.Go(func() { w.tell(watching) })
	clients.Wait()
	unwatch()
	others.Wait()
	w.rest()
	w.close()
	w.summary(d)
	if d >= 10*time.Second && w.book.reverseDone.Load() == 0 {
		t.Errorf("%s: no Call of a server was answered", s)
	}
}

// tell says how it goes, from time to time.
func (w *world) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
			fmt.Printf("%s: %d Calls answered, %d octets of memory used\n", w.seed, w.book.done.Load(), w.life().h.Arena.Used())
		}
	}
}

func (w *world) summary(d time.Duration) {
	b := w.book
	fmt.Printf("%s: %d Calls answered in %v, %d of them with SYSTEM_ERR; %d transmissions were repetitions; longest wait on a live connection %v\n",
		w.seed, b.done.Load(), d, b.failed.Load(), b.again.Load(), time.Duration(b.slowest.Load()).Round(time.Millisecond))
	fmt.Printf("%s: servers made %d Calls, of which %d were answered, %d with SYSTEM_ERR and %d with PROG_UNAVAIL\n", w.seed, b.reversed.Load(), b.reverseDone.Load(), b.reverseFailed.Load(), b.reverseNobody.Load())
	fmt.Printf("%s: faults: %s\n", w.seed, &w.counts)
	fmt.Printf("%s: log: %s\n", w.seed, &w.logs)
}
