package nlm

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"

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
				if _, err := c.Write(record(m)); err != nil {
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
	s.Allow(nil)
	if c, err = net.Dial("tcp", s.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = c.Write(record(xdr.AppendWords(nil, 7, 0, 2, 100021, 4, 0, 0, 0, 0, 0))); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := readRecord(c, func() {}); err != nil {
		t.Error(err)
	}
}
