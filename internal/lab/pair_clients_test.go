package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/hapair"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// pairConfig is what docs/scaling.md recommends for a pair: the two bridges differ in nothing.
const pairConfig = `
identity: one text for the pair
listeners:
  - {name: nfs, address: "0.0.0.0:2049", upstream: storage}
upstreams:
  - name: storage
    transport: tcp
    endpoints: ["192.0.2.1:2050"]
    source: {address: 192.0.2.101}
    backoff: {min: 100ms, max: 500ms}
memory: {budget: 48MiB}
admin: {address: "127.0.0.1:9090"}
control: {path: none}
`

const (
	// pairTimeo is when a client sends a Call again on the same connection, the timeo of a mount. A machine that is cut
	// off may have acknowledged a Call before. The client has nothing else to send, and so does not learn that its
	// connection has gone.
	pairTimeo = 5 * time.Second
	// pairPause is the time between two Calls of every second client. The bridge of a machine that is cut off closes
	// the connections of Calls that it loses. It keeps the others, to which such clients come back.
	pairPause = 100 * time.Millisecond
	// pairPorts are the ports of the clients, by their numbers.
	pairPorts = 800
)

// inPairNetwork is set in the environment of the process that has a network of its own.
const inPairNetwork = "RDMABRIDGE_PAIR_NETWORK"

// TestPair: two bridges with floating addresses, which a real keepalived gives to one of them, between clients that
// count and a server that remembers Calls as Linux's duplicate request cache does, by XID, address and port. The bridge
// that has the addresses is killed, its machine loses its cable, and the network loses its packets without notice.
// Clients go on within the bound, even if the machine that they come back to has kept connections from their ports. The
// server executes each Call once. With different source addresses it would not, which the last part shows.
func TestPair(t *testing.T) {
	if missing := hapair.Missing(); missing != "" {
		t.Skipf("needs %s, as deploy/lab/install.sh installs it", missing)
	}
	if os.Getenv(inPairNetwork) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPair$", "-test.v", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), inPairNetwork+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	machines := hapair.New(t, bridgeBinary(t), pairConfig)
	server := newOnceServer(t)
	clients := startPairClients(t, 0, 8)
	active := func() (on, off *hapair.Machine) {
		if machines[0].Active(t) {
			return machines[0], machines[1]
		}
		return machines[1], machines[0]
	}
	for _, f := range []struct {
		name        string
		fault, heal func(*hapair.Machine)
	}{
		{"killed", func(m *hapair.Machine) { m.KillBridge() }, func(m *hapair.Machine) { m.StartBridge(t) }},
		{"unplugged", func(m *hapair.Machine) { m.Unplug(t) }, func(m *hapair.Machine) { m.Plug(t) }},
		{"isolated", func(m *hapair.Machine) { m.Isolate(t) }, func(m *hapair.Machine) { m.Join(t) }},
	} {
		t.Run(f.name, func(t *testing.T) {
			on, off := active()
			clients.going(t, time.Now(), testkit.Patience)
			clients.pause() // the longest of this part only
			broken := time.Now()
			f.fault(on)
			testkit.Eventually(t, "the other machine has the addresses", func() bool { return off.Active(t) })
			moved := time.Since(broken)
			clients.going(t, broken.Add(moved), testkit.Patience)
			goes := time.Since(broken)
			standby := on.Standbys() + off.Standbys() // after isolated, both have the addresses, and the one of priority 100 keeps them
			f.heal(on)
			testkit.Eventually(t, "a standby again", func() bool { return on.Standbys()+off.Standbys() > standby && on.Active(t) != off.Active(t) })
			clients.going(t, time.Now(), testkit.Patience)
			pause := clients.pause()
			t.Logf("machine %s: the addresses moved after %.1f s, all clients went on after %.1f s, and the longest wait was %.1f s",
				on.Name, moved.Seconds(), goes.Seconds(), pause.Seconds())
		})
	}
	clients.end(t)
	again, remembered := server.counts()
	t.Logf("%d Calls; %d were answered from the server's memory", clients.count(), remembered)
	if again != 0 {
		t.Errorf("the server executed %d Calls twice", again)
	}

	// With another source address the server takes the other bridge for somebody else.
	on, off := active()
	off.KillBridge()
	off.Configure(t, strings.Replace(pairConfig, hapair.Source, off.Address, 1))
	off.StartBridge(t)
	server.delay.Store(int64(200 * time.Millisecond)) // so that Calls are at the server when the bridge is killed, however busy the machine is
	clients = startPairClients(t, 100, 16)
	clients.going(t, time.Now(), testkit.Patience)
	on.KillBridge()
	testkit.Eventually(t, "the other machine has the addresses", func() bool { return off.Active(t) })
	clients.going(t, time.Now(), testkit.Patience)
	if again, _ := server.counts(); again == 0 {
		t.Error("with two source addresses no Call was executed twice: this test would not see it")
	}
}

// A onceServer executes the Calls of pairClients. Like Linux's duplicate request cache it knows a Call by its XID, the
// address and port that it came from, and its arguments, and answers what it knows without executing it.
type onceServer struct {
	delay atomic.Int64 // before each Reply, in nanoseconds

	mu       sync.Mutex
	cache    map[onceKey][]byte
	executed map[string]int // by the Calls' own names
	hits     int
}

type onceKey struct {
	xid  uint32
	from netip.AddrPort
	sum  uint32
}

func newOnceServer(t *testing.T) *onceServer {
	s := &onceServer{cache: make(map[onceKey][]byte), executed: make(map[string]int)}
	s.delay.Store(int64(5 * time.Millisecond))
	l, err := net.Listen("tcp", hapair.Outside+":2050")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { s.serve(ctx, c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		conns.Wait()
	})
	return s
}

// serve answers each Call after a while, so that Calls are always under way.
func (s *onceServer) serve(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	var write sync.Mutex
	for {
		m, err := testkit.ReadRecord(c)
		if err != nil {
			return
		}
		reply := s.execute(m, from)
		time.AfterFunc(time.Duration(s.delay.Load()), func() {
			write.Lock()
			defer write.Unlock()
			_ = testkit.WriteRecord(c, reply)
		})
	}
}

func (s *onceServer) execute(m []byte, from netip.AddrPort) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	xid := binary.BigEndian.Uint32(m)
	if binary.BigEndian.Uint32(m[20:]) == 0 { // NULL
		return testkit.AppendWords(nil, xid, 1, 0, 0, 0, 0)
	}
	key := onceKey{xid, from, crc32.ChecksumIEEE(m[4:])}
	if reply, ok := s.cache[key]; ok {
		s.hits++
		return reply
	}
	name := string(m[len(m)-16:])
	s.executed[name]++
	reply := testkit.AppendWords(nil, xid, 1, 0, 0, 0, 0)
	if s.executed[name] > 1 {
		reply = append(reply, 0, 0, 0, 17) // NFS3ERR_EXIST
	} else {
		reply = append(reply, 0, 0, 0, 0)
	}
	reply = append(append(reply, name...), make([]byte, 8)...)
	s.cache[key] = reply
	return reply
}

// counts returns how many Calls were executed more than once, and how many were answered from memory.
func (s *onceServer) counts() (again, remembered int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.executed {
		again += min(n-1, 1)
	}
	return again, s.hits
}

// pairClients each send one Call after the other, every second one with pauses, as Linux's NFSv3 client does: when a
// connection is lost they send the Call again, with its XID, on the next one, which comes from the same port.
type pairClients struct {
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu      sync.Mutex
	last    []time.Time // when each was last answered
	begun   []time.Time // when each has begun its present Call
	longest time.Duration
	calls   int
	wrong   []string
}

// startPairClients starts n clients, whose numbers begin with first.
func startPairClients(t *testing.T, first, n int) *pairClients {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pairClients{cancel: cancel, last: make([]time.Time, n), begun: make([]time.Time, n)}
	for i := range n {
		p.all.Go(func() { p.run(ctx, first+i, i) })
	}
	t.Cleanup(func() {
		cancel()
		p.all.Wait()
	})
	return p
}

func (p *pairClients) run(ctx context.Context, client, i int) {
	var c net.Conn
	var xid uint32
	for n := uint32(0); ctx.Err() == nil; n++ {
		xid = uint32(client)<<24 | n
		name := fmt.Sprintf("%04d-%011d", client, n)
		// MKDIR of NFSv3, which must not be executed twice. The server reads only the name.
		call := testkit.AppendWords(nil, xid, 0, 2, 100003, 3, 9, 0, 0, 0, 0, 4, 1, 16)
		call = append(call, name...)
		if client%2 != 0 {
			time.Sleep(pairPause)
		}
		begun := time.Now()
		p.mu.Lock()
		p.begun[i] = begun
		p.mu.Unlock()
		var reply []byte
		var err error
		for ctx.Err() == nil {
			if c == nil {
				d := net.Dialer{Timeout: time.Second, KeepAlive: -1, LocalAddr: &net.TCPAddr{Port: pairPorts + client}, Control: proxytest.SharePort}
				if c, err = d.DialContext(ctx, "tcp", hapair.Floating+":2049"); err != nil {
					c = nil
					time.Sleep(100 * time.Millisecond) // the client's pause before it connects again
					continue
				}
			}
			if reply, err = exchange(ctx, c, call); err == nil {
				break
			}
			_ = c.(*net.TCPConn).SetLinger(0) // or the kernel keeps the port
			c.Close()
			c = nil
		}
		if ctx.Err() != nil {
			break
		}
		now := time.Now()
		p.mu.Lock()
		p.calls++
		p.last[i] = now
		p.longest = max(p.longest, now.Sub(begun))
		want := append(testkit.AppendWords(nil, xid, 1, 0, 0, 0, 0, 0), name...)
		if !bytes.HasPrefix(reply, want) {
			p.wrong = append(p.wrong, fmt.Sprintf("%s: % x", name, reply))
		}
		p.mu.Unlock()
	}
	if c != nil {
		c.Close()
	}
}

// exchange waits for the Reply for as long as the connection lasts, and sends the Call again every pairTimeo.
func exchange(ctx context.Context, c net.Conn, call []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := testkit.WriteRecord(c, call); err != nil {
		return nil, err
	}
	again := time.AfterFunc(pairTimeo, func() { _ = testkit.WriteRecord(c, call) }) // the connection is closed if this fails
	defer again.Stop()
	for {
		reply, err := testkit.ReadRecord(c)
		switch {
		case err != nil:
			return nil, err
		case len(reply) < 24:
			return nil, io.ErrUnexpectedEOF
		case bytes.Equal(reply[:4], call[:4]): // not the Reply to a Call that was sent twice
			return reply, nil
		}
	}
}

// going waits until each client has begun and finished Calls after a time.
func (p *pairClients) going(t *testing.T, after time.Time, bound time.Duration) {
	t.Helper()
	if !testkit.Settles(bound, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.last {
			if p.last[i].Before(after) || p.begun[i].Before(after) {
				return false
			}
		}
		return true
	}) {
		t.Fatalf("not every client goes on within %v", bound)
	}
}

// pause returns the longest time of a Call since the last call of pause.
func (p *pairClients) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.longest
	p.longest = 0
	return d
}

func (p *pairClients) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

func (p *pairClients) end(t *testing.T) {
	t.Helper()
	p.cancel()
	p.all.Wait()
	for _, w := range p.wrong {
		t.Errorf("a wrong Reply: %s", w)
	}
}
