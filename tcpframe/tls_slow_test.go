package tcpframe

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// Thousands of clients that send nothing, a part of a ClientHello, a whole one and nothing else, or garbage cost
// neighbours nothing: those that are connected are served, one of another host gets in while every goroutine is
// taken, and no more goroutines run and no more octets are kept than there may.
func TestTLSSlowClients(t *testing.T) {
	n := 4000
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	if most := int(r.Cur)/2 - 200; most < n {
		t.Logf("RLIMIT_NOFILE allows %d clients", most)
		n = most
	}
	const goroutines = 64
	// No handshake may time out while the clients are still being made.
	x, err := NewTLS(TLSOptions{Config: serverConfig(), Timeout: peerLasts})
	if err != nil {
		t.Fatal(err)
	}
	y := newTLSTest(t, EngineOptions{Loops: 1, Handshakes: goroutines, MaxSockets: 2 * n}, ListenOptions{MaxConns: -1, MaxConnsPerAddr: -1}, x, nil)
	// Nor give way to one of the same host, or none is left in the queue when the last client has come.
	q := y.e.servers
	q.SetPatience(time.Hour)
	neighbour, plain := y.secure(clientConfig()), dialPeer(t, y.l)
	before := runtime.NumGoroutine()

	hello := clientHello(t, clientConfig())
	kinds := [][]byte{nil, hello[:len(hello)/2], hello, append([]byte{recordHandshake, 3, 1, 1, 0}, make([]byte, 256)...)}
	conns := make([]net.Conn, n)
	var dialling sync.WaitGroup
	const dialers = 8
	for k := range dialers {
		dialling.Go(func() {
			for i := k; i < n; i += dialers {
				c, err := net.Dial("tcp", y.l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				conns[i] = c
				c.Write(fragment(true, probe))
				if _, err := readRecord(c, nil); err != nil {
					t.Errorf("the answer to the probe of client %d: %v", i, err)
					return
				}
				c.Write(kinds[i%len(kinds)])
			}
		})
	}
	done := make(chan struct{})
	go func() { dialling.Wait(); close(done) }()
	served := 0
	for waiting := true; waiting; served++ {
		neighbour.served(300)
		plain.send(fragment(true, pattern(300, 1)))
		plain.readRecord()
		select {
		case <-done:
			waiting = false
		default:
		}
	}
	if served == 0 || t.Failed() {
		t.FailNow()
	}
	y.wantFailure(TLSGarbage, uint64(n/len(kinds)))
	testkit.Eventually(t, "all that can have come to the queue", func() bool {
		r, w := q.Counts()
		return r == goroutines && w > 0
	})
	if k := runtime.NumGoroutine() - before; k > goroutines+dialers {
		t.Errorf("%d goroutines more than before", k)
	}
	if k := y.l.counters.inbound.Value(); k > int64(n*len(hello)) {
		t.Errorf("%d octets are kept", k)
	}

	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 20 { // hosts that have none come before one that has many
		c, err := d.Dial("tcp", y.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t, c.(*net.TCPConn)}
		p.ask()
		s := p.secure(clientConfig())
		s.served(300)
		s.Close()
	}
	neighbour.served(300)
	for _, c := range conns {
		c.Close()
	}
	neighbour.Close()
	plain.Close()
	y.wantNone()
	t.Logf("%d round trips of each neighbour meanwhile; ended: %d garbage, %d gave way, %d closed, %d timed out", served,
		y.failures(TLSGarbage), y.failures(TLSBusy), y.failures(TLSPeerClosed), y.failures(TLSTimeout))
}

// The bounds of the queue: hosts take turns, a handshake that waits for its peer gives way, and beyond the
// queue there is no place.
func TestHandshakeQueue(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{Handshakes: 2, HandshakeQueue: 3, Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	hello := clientHello(t, clientConfig())
	var began []*peer
	begin := func() *peer {
		p := y.ask()
		p.send(hello)
		began = append(began, p)
		return p
	}
	q := y.e.servers
	wait := func(patience time.Duration) {
		q.SetPatience(patience)
	}
	wait(time.Hour)
	state := func(running, waiting int) {
		t.Helper()
		testkit.Eventually(t, "handshakes are where they belong", func() bool {
			r, w := q.Counts()
			return r == running && w == waiting
		})
	}
	for range 5 {
		begin()
	}
	state(2, 3)
	begin().wantEnd("the queue is full")
	y.wantFailure(TLSBusy, 1)
	// When they have waited for too long, those of the same host give way, and the next ones come in.
	wait(0)
	y.wantFailure(TLSBusy, 4)
	state(2, 0)
	for _, p := range began {
		p.Close()
	}
	y.wantNone()
}

// When the bounds change, handshakes that wait begin, those that are under way stay, and the metrics say what there
// is.
func TestLimitHandshakes(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{Handshakes: 1, HandshakeQueue: 2, Loops: 1, tick: time.Hour}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	q := y.e.servers
	q.SetPatience(time.Hour)
	hello := clientHello(t, clientConfig())
	begin := func() *peer {
		p := y.ask()
		p.send(hello)
		return p
	}
	state := func(running, waiting int, waits uint64) {
		t.Helper()
		testkit.Eventually(t, "handshakes are where they belong", func() bool {
			r, w := q.Counts()
			return r == running && w == waiting && q.Waits() == waits
		})
		for name, want := range map[string]int{"running": running, "waiting": waiting} {
			line := fmt.Sprintf("rdmabridge_tls_%s_handshakes{side=\"listeners\"} %d\n", name, want)
			w := httptest.NewRecorder()
			y.reg.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("no line %q in the metrics", line)
			}
		}
	}
	var all []*peer
	for i := range 3 {
		all = append(all, begin())
		state(1, i, uint64(i))
	}
	begin().wantEnd("the queue is full")
	y.wantFailure(TLSBusy, 1)
	if s := y.log.String(); !strings.Contains(s, `"reason":"busy"`) || !strings.Contains(s, "too many handshakes are under way and waiting") {
		t.Errorf("the log does not say so: %s", s)
	}
	y.e.LimitHandshakes(2, 1)
	state(2, 1, 2)
	begin().wantEnd("the queue is full again")
	y.wantFailure(TLSBusy, 2)
	y.e.LimitHandshakes(1, 1)
	state(2, 1, 2)
	y.e.LimitHandshakes(3, 1)
	state(3, 0, 2)
	for _, p := range all {
		p.Close()
	}
	y.wantNone()
}

// TestTLSReleaseEach: a record is released when the kernel has its last octet, even if TLS records that were made
// with it must wait. The peer may answer it at once.
func TestTLSReleaseEach(t *testing.T) {
	t.Parallel()
	const size = 200_000
	var short, long atomic.Bool
	y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.record = func(c *Conn, b Buffer) {
			b.Release()
			if err := unix.SetsockoptInt(c.sock.Descriptor(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
				t.Error(err)
			}
			c.Send([][]byte{pattern(100, 1)}, releaseFunc(func() { short.Store(true) }))
			c.Send([][]byte{pattern(size, 2)}, releaseFunc(func() { long.Store(true) }))
		}
	})
	d := net.Dialer{Control: func(_, _ string, rc syscall.RawConn) (failed error) {
		err := rc.Control(func(fd uintptr) { // segments so short that the kernel takes only a part of the TLS records
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536)
		})
		return errors.Join(err, failed)
	}}
	nc, err := d.Dial("tcp", y.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(peerLasts)); err != nil {
		t.Fatal(err)
	}
	plain := &peer{t, nc.(*net.TCPConn)}
	plain.ask()
	p := plain.secure(clientConfig())
	if err := p.tcp.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	p.Write(fragment(true, pattern(8, 0)))
	if got := p.readRecord(); !bytes.Equal(got, pattern(100, 1)) {
		t.Error("the short record differs")
	}
	testkit.Eventually(t, "the record that the peer has is released", short.Load)
	if long.Load() {
		t.Error("a record is released that the peer cannot have")
	}
	if err := p.tcp.SetReadBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	if got := p.readRecord(); !bytes.Equal(got, pattern(size, 2)) {
		t.Error("the long record differs")
	}
	testkit.Eventually(t, "the long record is released", long.Load)
	p.Close()
	y.wantNone()
}

// In steady state a TLS record costs what crypto/tls allocates for it, and nothing else.
func TestTLSAllocs(t *testing.T) {
	y := newTLSTest(t, EngineOptions{Loops: 1, tick: time.Hour}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	p := y.secure(clientConfig())
	out := fragment(true, pattern(100, 1))
	in := make([]byte, len(out))
	// The client, too, reads with crypto/tls, which allocates 24 octets to read a record: one for each end.
	if a := testing.AllocsPerRun(500, func() {
		p.send(out)
		for n := 0; n < len(in); {
			k, err := p.Read(in[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}); a > 2 && !testkit.RaceEnabled {
		t.Errorf("%v allocs per record and its answer, want 2", a)
	}
	if !bytes.Equal(in, out) {
		t.Error("another record came back")
	}
	p.Close()
	y.wantNone()
}

// An idle connection with TLS has no goroutine, and its memory is bounded by that of crypto/tls: some KiB, and 18 KiB
// more once a long record has come.
func TestTLSIdleMemory(t *testing.T) {
	y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	const n = 100
	for _, tt := range []struct {
		record int
		most   int64 // octets of each connection, both ends together
	}{{100, 40 << 10}, {200 << 10, 100 << 10}} {
		before, goroutines := heapInUse(), runtime.NumGoroutine()
		var peers []*tlsPeer
		for range n {
			p := y.secure(clientConfig())
			p.served(tt.record)
			peers = append(peers, p)
		}
		each := (heapInUse() - before) / n
		t.Logf("after a record of %d octets, an idle connection holds %d octets, both ends", tt.record, each)
		if each > tt.most {
			t.Errorf("an idle connection holds %d octets, more than %d", each, tt.most)
		}
		testkit.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
		for _, p := range peers {
			p.Close()
		}
		y.wantNone()
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
