package nlm

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// parsed reads the arguments of a Call.
func parsed(t testing.TB, c *oncrpc.Call) (r request) {
	t.Helper()
	procedure, _ := plain(c.Procedure)
	if !r.parse(c.Message, c.Args, c.Version, procedure) {
		t.Errorf("procedure %d: arguments %x", c.Procedure, c.Message[c.Args:])
	}
	return r
}

// statOf returns results.
func statOf(stat uint32) []byte {
	return (&result{stat: stat}).append(nil, []byte("a cookie"), 4, procLock)
}

// TestForward: each procedure reaches the server as its client meant it, with another owner and name, and the client gets
// the server's stat, in each version and over both transports.
func TestForward(t *testing.T) {
	n := newNetwork(t)
	seen := make(chan *oncrpc.Call, 1)
	server := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		seen <- c
		return (&result{stat: 5}).append(nil, []byte("x"), c.Version, c.Procedure)
	})
	s := n.bridge(server, Options{})
	client, other := n.peer(nil), n.peer(nil)
	for _, network := range []string{"tcp", "udp"} {
		for _, version := range []uint32{1, 3, 4} {
			for _, procedure := range []uint32{procTest, procLock, procCancel, procUnlock, procNMLock, procShare, procUnshare} {
				var owners []request
				for _, p := range []*peer{client, other} {
					r := p.lock(7, 1000, 50)
					r.mode, r.access = 2, 3
					if got := p.do(s, network, version, procedure, r); got != 5 {
						t.Errorf("version %d, procedure %d: stat %d", version, procedure, got)
					}
					c := <-seen
					far := parsed(t, c)
					owners = append(owners, far)
					if c.Version != version || c.Procedure != procedure || string(far.name) != "the bridge" || !bytes.HasSuffix(far.oh, r.oh) || len(far.oh) != len(r.oh)+8 {
						t.Errorf("version %d, procedure %d: %+v", version, procedure, far)
					}
					far.name, far.oh, far.svid = r.name, r.oh, r.svid
					if far.state != 0 {
						far.state = r.state
					}
					if got, want := far.append(nil, version, procedure), r.append(nil, version, procedure); !bytes.Equal(got, want) {
						t.Errorf("version %d, procedure %d: %x, want %x", version, procedure, got, want)
					}
				}
				if a, b := owners[0], owners[1]; bytes.Equal(a.oh, b.oh) || procedure < procShare && a.svid == b.svid {
					t.Errorf("procedure %d: two clients have one owner", procedure)
				}
			}
		}
	}
	if x := s.Snapshot(); x.Held+x.Waiting+x.Clients != 0 {
		t.Errorf("nothing is held: %+v", x)
	}
}

// TestCounts: the table follows what the server says.
func TestCounts(t *testing.T) {
	n := newNetwork(t)
	var stat uint32
	r := metrics.New()
	s := n.bridge(n.peer(func(*oncrpc.Call, bool) []byte { return statOf(stat) }), Options{Metrics: r})
	a, b := n.peer(nil), n.peer(nil)
	for _, tt := range []struct {
		p                      *peer
		procedure, stat        uint32
		start, length          uint64
		held, waiting, clients int
	}{
		{a, procLock, granted, 0, 10, 1, 0, 1},
		{a, procLock, granted, 10, 10, 1, 0, 1}, // side by side
		{a, procLock, denied, 50, 10, 1, 0, 1},
		{b, procLock, blocked, 0, 0, 1, 1, 2},
		{b, procLock, blocked, 0, 0, 1, 1, 2}, // asks again
		{a, procUnlock, granted, 5, 5, 2, 1, 2},
		{a, procUnlock, gracePeriod, 0, 0, 2, 1, 2},
		{a, procUnlock, granted, 0, 0, 0, 1, 1},
		{b, procCancel, gracePeriod, 0, 0, 0, 1, 1},
		{b, procCancel, denied, 0, 0, 0, 0, 0},
		{b, procLock, blocked, 0, 0, 0, 1, 1},
		{b, procLock, granted, 0, 0, 1, 0, 1},
		{b, procUnlock, granted, 0, 0, 0, 0, 0},
	} {
		stat = tt.stat
		if got := tt.p.do(s, "tcp", 4, tt.procedure, tt.p.lock(1, tt.start, tt.length)); got != tt.stat {
			t.Errorf("%+v: stat %d", tt, got)
		}
		if x := s.Snapshot(); x.Held != tt.held || x.Waiting != tt.waiting || x.Clients != tt.clients {
			t.Errorf("%+v: %+v", tt, x)
		}
	}
	if got := r.Counter(metrics.NLMCalls, "lock", "blocked").Value(); got != 3 {
		t.Errorf("%d LOCKs were BLOCKED by the metrics", got)
	}
	testkit.Eventually(t, "every client is forgotten", func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return len(s.table.clients)+len(s.table.owners)+len(s.table.numbers) == 0
	})
}
