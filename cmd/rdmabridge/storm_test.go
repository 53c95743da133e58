package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// A storm is many clients that repeat their Calls until each is answered, and a bridge
// that is killed again and again.
type storm struct {
	clients, deep int // connections, and Calls outstanding on each from the start
	size          int // octets of each WRITE, and of each READ
	kills         int
	each          time.Duration // in which the clients fill a bridge before it is killed
	budget        configs.Size  // 0 for the default
	kind          configs.Transport
	group         *memoryGroup // of the bridge; nil for none
}

// stormSlack is how much memory the process may use beside its budget.
const stormSlack = 64 << 20

// A stormClient sends all its Calls at once. When it loses its connection it connects
// again and repeats the Calls that have no Reply.
type stormClient struct {
	addr  string
	first uint32   // XID of the first Call; to the bridge all clients are one address
	calls [][]byte // by XID; without the XID, their first four octets
	wants [][]byte
	got   []atomic.Bool
	left  atomic.Int64
}

var errStormDone = errors.New("done")

func (c *stormClient) run(stop <-chan struct{}) error {
	for {
		err := c.connection(stop)
		switch {
		case errors.Is(err, errStormDone):
			return nil
		case errors.Is(err, errStormWrong):
			return err
		}
		select {
		case <-stop:
			return fmt.Errorf("%d calls are not answered; the last connection: %w", c.left.Load(), err)
		case <-time.After(20 * time.Millisecond): // a client's pause before it connects again
		}
	}
}

var errStormWrong = errors.New("wrong reply")

func (c *stormClient) connection(stop <-chan struct{}) error {
	nc, err := net.DialTimeout("tcp", c.addr, time.Second)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer nc.Close()
	over := make(chan struct{})
	defer close(over)
	wg.Go(func() {
		select {
		case <-stop:
		case <-over:
		}
		nc.Close()
	})
	wg.Go(func() {
		for i, m := range c.calls {
			if c.got[i].Load() {
				continue
			}
			head := binary.BigEndian.AppendUint32(nil, 1<<31|uint32(4+len(m)))
			head = binary.BigEndian.AppendUint32(head, c.first+uint32(i))
			b := net.Buffers{head, m}
			if _, err := b.WriteTo(nc); err != nil {
				return
			}
		}
	})
	for {
		m, err := testkit.ReadRecord(nc)
		if err != nil {
			return err
		}
		i := int(binary.BigEndian.Uint32(m) - c.first)
		if i < 0 || i >= len(c.calls) || !bytes.Equal(m[4:], c.wants[i]) {
			return fmt.Errorf("%w of %d octets to call %d", errStormWrong, len(m), i)
		}
		if !c.got[i].Swap(true) && c.left.Add(-1) == 0 {
			return errStormDone
		}
	}
}

// server starts an upstream that answers no Call while gate is shut.
func (s *storm) server(t *testing.T, gate *proxytest.Gate) (addr string, served *proxytest.Served) {
	b := proxytest.Behaviour{Gate: gate}
	h := proxytest.NewHarness(t, 128<<20)
	if s.kind == configs.TransportTCP {
		x := h.TCPServer(b)
		return x.Addr(), &x.Served
	}
	l := iwarptest.NewLoop()
	t.Cleanup(l.Stop)
	x := h.RDMAServer(proxytest.IWARP(iwarp.Options{Log: h.Log}), []loop.Loop{l}, "127.0.0.1:0", 32, b)
	return x.Addr(), &x.Served
}

func (s *storm) run(t *testing.T) {
	gate := new(proxytest.Gate)
	gate.Shut()
	upstream, served := s.server(t, gate)
	addr := testkit.FreeAddr(t) // the same for every run of the bridge
	config := fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: storage}]
upstreams: [{name: storage, transport: %s, endpoints: [%q], pool: {credits: 32}, timeouts: {call: 120s, unavailable: 120s}}]
admin: {address: none}
chunks: {io: 1MiB}
`, addr, s.kind, upstream)
	if s.budget > 0 {
		config += fmt.Sprintf("memory: {budget: %s}\n", s.budget)
	}
	file := writeFile(t, config)

	stop := make(chan struct{})
	time.AfterFunc(5*testkit.Patience, func() { close(stop) })
	var wg sync.WaitGroup
	defer wg.Wait()
	var unfinished atomic.Int64
	for _, c := range s.newClients(addr) {
		unfinished.Add(1)
		wg.Go(func() {
			if err := c.run(stop); err != nil {
				t.Error(err)
			}
			unfinished.Add(-1)
		})
	}
	for n := range s.kills {
		before := served.Calls.Load()
		s.runBridge(t, file, n, func() {}, func() bool { return served.Calls.Load() == before && unfinished.Load() > 0 })
	}
	before := served.Calls.Load()
	s.runBridge(t, file, s.kills, func() {
		testkit.Eventually(t, "a Call is at the server", func() bool { return served.Calls.Load() > before })
		gate.Open()
	}, func() bool { return unfinished.Load() > 0 })
}

// newClients returns clients that send WRITEs and READs in turn to addr.
func (s *storm) newClients(addr string) []*stormClient {
	write, read := proxytest.WriteCall(0, 7, s.size), proxytest.ReadCall(0, 8, uint32(s.size))
	wantWrite, wantRead := proxytest.Expected(write), proxytest.Expected(read)
	var clients []*stormClient
	for n := range s.clients {
		c := &stormClient{addr: addr, first: uint32(n) << 16, got: make([]atomic.Bool, s.deep)}
		c.left.Store(int64(s.deep))
		for i := range s.deep {
			m, want := write, wantWrite
			if i%2 == 1 {
				m, want = read, wantRead
			}
			c.calls, c.wants = append(c.calls, m[4:]), append(c.wants, want[4:])
		}
		clients = append(clients, c)
	}
	return clients
}

// runBridge starts the bridge for the n-th time, calls begin, and kills the bridge after
// s.each, or later when busy returns false. It checks the memory of the bridge meanwhile.
func (s *storm) runBridge(t *testing.T, file string, n int, begin func(), busy func() bool) {
	t.Helper()
	log := new(testkit.Log)
	cmd := s.group.command(os.Args[0], "serve", "-c", file)
	cmd.Env = append(os.Environ(), "RDMABRIDGE_TEST_MAIN=1")
	cmd.Stderr, cmd.Stdout = log, io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	begin()
	began := time.Now()
	var most int64
	for time.Since(began) < s.each || busy() {
		select {
		case err := <-ended:
			t.Fatalf("the bridge ended: %v\n%s", err, log)
		case <-time.After(20 * time.Millisecond): // until the next look at the memory
		}
		b, err := testkit.ProcessMemory(cmd.Process.Pid, "VmHWM:") // the most that was resident so far
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, b)
	}
	t.Logf("run %d: %d MiB resident at most, %v", n, most>>20, time.Since(began).Round(time.Millisecond))
	if limit := int64(s.budget) + stormSlack; s.group == nil && most > limit && !testkit.RaceEnabled {
		t.Errorf("run %d: %d octets were resident, want at most %d", n, most, limit)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if n == s.kills && t.Failed() {
		t.Logf("log:\n%s", log)
	}
}

// TestStorm: a bridge that is killed and started again while clients have many Calls
// outstanding stays within its budget. When the upstream answers at last, all of
// them are done.
func TestStorm(t *testing.T) {
	s := storm{clients: 20, deep: 16, size: 64 << 10, kills: 2, each: 500 * time.Millisecond, budget: 64 * configs.MiB}
	// Clients, Calls of each, octets, kills, ms between them and MiB of budget.
	if v := os.Getenv("RDMABRIDGE_STORM"); v != "" {
		var ms int
		var mib int64
		if _, err := fmt.Sscanf(v, "%d,%d,%d,%d,%d,%d", &s.clients, &s.deep, &s.size, &s.kills, &ms, &mib); err != nil {
			t.Fatal(err)
		}
		s.each, s.budget = time.Duration(ms)*time.Millisecond, configs.Size(mib)*configs.MiB
	}
	for _, s.kind = range []configs.Transport{configs.TransportRDMA, configs.TransportTCP} {
		t.Run(string(s.kind), s.run)
	}
}
