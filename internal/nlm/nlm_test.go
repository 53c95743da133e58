package nlm

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }

// start starts a Server that t ends.
func start(t testing.TB, o Options) *Server {
	t.Helper()
	o.Log = zerolog.New(zerolog.NewTestWriter(t))
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestHeaders: the accept_stat of each Call, over both transports; -1 is another Reply.
func TestHeaders(t *testing.T) {
	s := start(t, Options{Address: "127.0.0.1:0", Server: "127.0.0.2"})
	for _, network := range []string{"tcp", "udp"} {
		c, err := net.Dial(network, s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, tt := range []struct{ program, version, procedure, want uint32 }{
			{100021, 1, 0, 0},
			{100021, 3, 0, 0},
			{100021, 4, 0, 0},
			{100024, 1, 0, 0},
			{100021, 2, 0, 2},
			{100021, 5, 0, 2},
			{100021, 0, 0, 2},
			{100024, 2, 0, 2},
			{100003, 3, 0, 1},
			{100021, 4, 16, 3},
			{100021, 4, 24, 3},
			{100024, 1, 7, 3},
		} {
			m := xdr.AppendWords(nil, 7, 0, 2, tt.program, tt.version, tt.procedure, 0, 0, 0, 0)
			_ = c.SetDeadline(time.Now().Add(testkit.Patience))
			var got []byte
			if network == "tcp" {
				if _, err := c.Write(ask.Record(m)); err != nil {
					t.Fatal(err)
				}
				if got, err = readRecord(c, func() {}); err != nil {
					t.Fatal(err)
				}
			} else {
				if _, err := c.Write(m); err != nil {
					t.Fatal(err)
				}
				got = make([]byte, maxDatagram)
				n, err := c.Read(got)
				if err != nil {
					t.Fatal(err)
				}
				got = got[:n]
			}
			var r oncrpc.Reply
			if err := oncrpc.ParseReply(got, &r); err != nil || r.XID != 7 || r.Denied || r.AcceptStat != tt.want {
				t.Errorf("%s %v: %x, %v", network, tt, got, err)
			}
		}
	}
}

// TestAllow: an address that is not allowed gets no answer.
func TestAllow(t *testing.T) {
	s := start(t, Options{Address: "127.0.0.1:0", Server: "127.0.0.2", Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}})
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d octets, %v", n, err)
	}
	if !s.allowed(netip.MustParseAddr("127.0.0.2")) {
		t.Error("the server is not allowed")
	}
	s.Allow(nil)
	if c, err = net.Dial("tcp", s.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = c.Write(ask.Record(xdr.AppendWords(nil, 7, 0, 2, 100021, 4, 0, 0, 0, 0, 0))); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := readRecord(c, func() {}); err != nil {
		t.Error(err)
	}
}

// TestCloseAnswers: a Call that is under way when the Server closes is answered.
func TestCloseAnswers(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		n := newNetwork(t)
		var s *Server
		server := n.peer(func(*oncrpc.Call, bool) []byte {
			go func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			return nil
		})
		s = n.bridge(server, Options{})
		client := n.peer(nil)
		if got := client.do(s, network, 4, procLock, client.lock(1, 0, 0)); got != gracePeriod {
			t.Errorf("%s: stat %d", network, got)
		}
	}
}

// TestRepeat: a Call that repeats one under way does not reach the server, and is answered as that one is.
func TestRepeat(t *testing.T) {
	n := newNetwork(t)
	var calls atomic.Int32
	more := make(chan bool)
	s := n.bridge(n.peer(func(*oncrpc.Call, bool) []byte {
		calls.Add(1)
		<-more
		return statOf(granted)
	}), Options{})
	client := n.peer(nil)
	done := make(chan uint32)
	for range 3 {
		go func() {
			client := &peer{t: t, addr: client.addr} // which begins with the same XID
			done <- client.do(s, "udp", 4, procLock, client.lock(1, 0, 0))
		}()
	}
	testkit.Eventually(t, "three have come", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sends := range s.flights {
			return len(sends) >= 3
		}
		return false
	})
	close(more)
	for range 3 {
		if got := <-done; got != granted {
			t.Errorf("stat %d", got)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d Calls have reached the server", n)
	}
}

// TestCrowded: a host has a bound of Calls under way and of connections, and does not keep others out.
func TestCrowded(t *testing.T) {
	n := newNetwork(t)
	more := make(chan bool)
	s := n.bridge(n.peer(func(*oncrpc.Call, bool) []byte { <-more; return statOf(granted) }), Options{})
	defer close(more)
	client, other := n.peer(nil), n.peer(nil)
	for i := range uint32(maxHostCalls) {
		s.begin(&call{Call: oncrpc.Call{XID: i}, from: netip.AddrPortFrom(client.addr, 700), udp: true}, nil, func() { <-s.ctx.Done() })
	}
	if got := client.do(s, "tcp", 4, procLock, client.lock(1, 0, 0)); got != gracePeriod {
		t.Errorf("one too many: stat %d", got)
	}
	go func() { more <- true }()
	if got := other.do(s, "tcp", 4, procLock, other.lock(1, 0, 0)); got != granted {
		t.Errorf("another host: stat %d", got)
	}
	testkit.Eventually(t, "no connections", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.hosts.All() == 0
	})
	for i := range maxHostConns + 1 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		_, err = c.Write(ask.Record(xdr.AppendWords(nil, 7, 0, 2, 100021, 4, 0, 0, 0, 0, 0)))
		if err == nil {
			_, err = readRecord(c, func() {})
		}
		if (err == nil) != (i < maxHostConns) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

// TestNoAmplifier: datagrams with a forged source send no more than a bounded number of octets.
func TestNoAmplifier(t *testing.T) {
	var s Server
	answers, octets := 0, 0
	for i := range 40000 { // in two seconds
		if s.mayAnswer(arrival.Slack+100, time.Unix(1e9, int64(i)*5e4)) {
			octets += 100
		}
		if s.mayAnswer(arrival.Slack, time.Unix(1e9, int64(i)*5e4)) {
			answers++
		}
	}
	if octets > arrival.ExcessBurst+2*arrival.ExcessRate || answers > arrival.AnswerBurst+2*arrival.AnswerRate || octets == 0 || answers < 2*arrival.AnswerRate {
		t.Errorf("%d answers, and %d octets more than were asked", answers, octets)
	}
}
