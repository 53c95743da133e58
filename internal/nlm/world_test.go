package nlm_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/nlm"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nlmtest"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// The hosts of a world.
var (
	serverAddr = netip.MustParseAddr("127.91.0.2")
	bridgeAddr = netip.MustParseAddr("127.91.0.3")
)

func clientAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 91, 0, byte(10 + i)}) }

// A world is a server, a bridge, and clients that have mounted the server by the bridge's address.
type world struct {
	t       testing.TB
	rpcbind uint16
	server  *nlmtest.Server
	clients []*nlmtest.Client
	bridge  *nlm.Server
	options nlm.Options
	log     testkit.Log
}

// newWorld starts a world with a client of each style.
func newWorld(t testing.TB, styles ...nlmtest.Style) *world {
	t.Helper()
	hosts := []netip.Addr{serverAddr, bridgeAddr}
	for i := range styles {
		hosts = append(hosts, clientAddr(i))
	}
	w := &world{t: t, rpcbind: nlmtest.RPCBindPort(t, hosts...)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the bridge's log:\n%s", w.log.String())
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.server, err = nlmtest.NewServer(serverAddr, w.rpcbind, "storage.example")
	must(err)
	t.Cleanup(w.server.Stop)
	w.options = nlm.Options{
		Address: netip.AddrPortFrom(bridgeAddr, 0).String(), Server: serverAddr.String(), Name: "bridge.example",
		State: t.TempDir(), Key: [32]byte{1}, Log: zerolog.New(&w.log), RPCBindPort: w.rpcbind,
	}
	w.start()
	t.Cleanup(func() { w.bridge.Close() })
	w.options.Address = w.bridge.Addr().String()
	rpcbind, err := nlmtest.NewRPCBind(bridgeAddr, w.rpcbind, w.bridge.Addr().Port())
	must(err)
	t.Cleanup(rpcbind.Stop)
	for i, style := range styles {
		c, err := nlmtest.NewClient(clientAddr(i), w.rpcbind, fmt.Sprintf("client%d", i), style, bridgeAddr)
		must(err)
		t.Cleanup(c.Stop)
		w.clients = append(w.clients, c)
	}
	return w
}

func (w *world) start() {
	w.t.Helper()
	o := w.options
	o.Metrics = metrics.New()
	var err error
	if w.bridge, err = nlm.Listen(o); err != nil {
		w.t.Fatal(err)
	}
}

// restartBridge ends the bridge and starts another one at the same address and with the same state.
func (w *world) restartBridge() {
	w.t.Helper()
	if err := w.bridge.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

// do calls a procedure, and fails the test unless the result is want.
func (w *world) do(c *nlmtest.Client, procedure uint32, a nlmtest.Args, want nlmtest.Stat) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	r, err := c.Do(ctx, procedure, a)
	if err != nil || r.Stat != want {
		w.t.Fatalf("%s: procedure %d of %+v: status %d and %v, want status %d", c.Name, procedure, a, r.Stat, err, want)
	}
}

// restartClient starts a client again after Stop.
func (w *world) restartClient(c *nlmtest.Client) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := c.Restart(ctx); err != nil {
		w.t.Fatalf("%s: its notice is not answered: %v", c.Name, err)
	}
}

// settled waits until the server has so many locks, and so many LOCKs that wait.
func (w *world) settled(held, waiting int) {
	w.t.Helper()
	testkit.Eventually(w.t, fmt.Sprintf("%d locks and %d that wait", held, waiting), func() bool {
		h, n := w.server.Locks()
		return h == held && n == waiting
	})
}

// idle waits until the bridge remembers no lock.
func (w *world) idle() {
	w.t.Helper()
	if !testkit.Settles(testkit.Patience, func() bool {
		s := w.bridge.Snapshot()
		return s.Held == 0 && s.Waiting == 0 && s.Clients == 0
	}) {
		w.t.Errorf("the bridge still has %+v", w.bridge.Snapshot())
	}
}

// during runs f while op runs.
func during(op, f func()) {
	var work sync.WaitGroup
	work.Go(op)
	f()
	work.Wait()
}
