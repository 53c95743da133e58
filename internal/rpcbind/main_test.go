package rpcbind

import (
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }

// testServices are the services of the tests' Server:
//
//	100003 3, 4 and 100005 3  TCP   every address, port 2049 (.8.1)
//	100003 3                  RDMA  192.0.2.1:20049 (.78.81)
//	100021 4                  TCP   127.0.0.1:4045 (.15.205)
//	100024 1                  TCP   [2001:db8::1]:662 (.2.150)
func testServices() []Service {
	return []Service{
		{Address: netip.MustParseAddrPort("[::]:2049"), Programs: []Program{{100003, 3}, {100003, 4}, {100005, 3}}},
		{Address: netip.MustParseAddrPort("192.0.2.1:20049"), RDMA: true, Programs: []Program{{100003, 3}}},
		{Address: netip.MustParseAddrPort("127.0.0.1:4045"), Programs: []Program{{100021, 4}}},
		{Address: netip.MustParseAddrPort("[2001:db8::1%eth0]:662"), Programs: []Program{{100024, 1}}},
	}
}

// newTestServer returns a Server without sockets, for calls of answer.
func newTestServer(services []Service) *Server {
	s := &Server{clients: make(map[*client]struct{})}
	s.series.resolve(nil)
	t := makeTable(netip.MustParseAddrPort("[::]:111"), services)
	s.stats.expect(t)
	s.entries.Store(&t)
	return s
}

// overTCP and overUDP return a question that was sent to the address local.
func overTCP(local string) question { return question{local: netip.MustParseAddr(local)} }

func overUDP(local string) question {
	return question{local: netip.MustParseAddr(local), datagram: true}
}

func testMetrics() *metrics.Registry { return metrics.New() }

func scrape(m *metrics.Registry) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}
