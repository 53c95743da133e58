package nlm_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

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
	bridge  *nlm.Server // nil if it is a process
	options nlm.Options
	log     testkit.Log

	processes bool // restartBridge kills the bridge
	process   *exec.Cmd
}

// newWorld starts a world with a client of each style.
func newWorld(t testing.TB, styles ...nlmtest.Style) *world {
	t.Helper()
	return makeWorld(t, false, styles...)
}

func makeWorld(t testing.TB, processes bool, styles ...nlmtest.Style) *world {
	t.Helper()
	hosts := []netip.Addr{serverAddr, bridgeAddr}
	for i := range styles {
		hosts = append(hosts, clientAddr(i))
	}
	w := &world{t: t, rpcbind: nlmtest.RPCBindPort(t, hosts...), processes: processes}
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
		Address: netip.AddrPortFrom(bridgeAddr, nlmtest.RPCBindPort(t, bridgeAddr)).String(), Server: serverAddr.String(), Name: "bridge.example",
		State: t.TempDir(), Key: [32]byte{1}, Log: zerolog.New(&w.log), RPCBindPort: w.rpcbind,
	}
	w.start()
	t.Cleanup(w.stop)
	rpcbind, err := nlmtest.NewRPCBind(bridgeAddr, w.rpcbind, netip.MustParseAddrPort(w.options.Address).Port())
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

// inProcess has the arguments of a bridge that is a process.
const inProcess = "RDMABRIDGE_TEST_NLM"

func (w *world) start() {
	w.t.Helper()
	o := w.options
	var err error
	if !w.processes {
		o.Metrics = metrics.New()
		if w.bridge, err = nlm.Listen(o); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	w.process = exec.Command(os.Args[0], "-test.run=^TestBridgeProcess$")
	w.process.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", inProcess, o.Address, o.Server, o.State, o.RPCBindPort))
	w.process.Stderr = &w.log
	out, err := w.process.StdoutPipe()
	if err == nil {
		_, err = w.process.StdinPipe()
	}
	if err == nil {
		err = w.process.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, 1))
	}
	if err != nil {
		w.t.Fatalf("the bridge does not start: %v", err)
	}
}

// TestBridgeProcess is the bridge that start starts.
func TestBridgeProcess(t *testing.T) {
	arguments := os.Getenv(inProcess)
	if arguments == "" {
		return
	}
	o := nlm.Options{Name: "bridge.example", Key: [32]byte{1}, Log: zerolog.New(os.Stderr), Metrics: metrics.New()}
	if _, err := fmt.Sscan(arguments, &o.Address, &o.Server, &o.State, &o.RPCBindPort); err != nil {
		t.Fatal(err)
	}
	if _, err := nlm.Listen(o); err != nil {
		t.Fatal(err)
	}
	fmt.Print("\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
}

// stop ends the bridge.
func (w *world) stop() {
	if !w.processes {
		w.bridge.Close()
		return
	}
	_ = w.process.Process.Kill()
	_ = w.process.Wait()
}

// restartBridge ends or kills the bridge, and starts another one at the same address and with the same state.
func (w *world) restartBridge() {
	w.t.Helper()
	w.stop()
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

// flown waits until the bridge has no Call under way, by ending it.
func (w *world) flown() {
	w.t.Helper()
	time.Sleep(500 * time.Millisecond) // more than until a Call is sent again
	w.restartBridge()
}

// idle waits until the bridge remembers no lock.
func (w *world) idle() {
	w.t.Helper()
	if w.processes {
		return
	}
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
