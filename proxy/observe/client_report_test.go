package observe

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// identified is an Identity with one name.
type identified string

func (i identified) Names() []string   { return []string{string(i)} }
func (identified) Status() *status.TLS { return new(status.TLS) }

func testReports() []*ClientReport {
	return []*ClientReport{
		{
			Peer: netip.MustParseAddrPort("192.0.2.3:700"), Listener: "nfs", Tenant: "blue", Unread: 5,
			Seen: Client{calls: 3, in: 10, flying: inFlight{calls: 1, oldest: 50}},
		},
		{
			Peer: netip.MustParseAddrPort("[::ffff:192.0.2.1]:701"), Listener: "locks", RDMA: true, Upstreams: [2]string{"storage", ""},
			Seen: Client{calls: 9, in: 1}, Waits: 4,
		},
		{
			Peer: netip.MustParseAddrPort("198.51.100.2:702"), Listener: "nfs", TLS: true, Identity: identified("Green"),
			Seen: Client{calls: 1, out: 20, flying: inFlight{calls: 1, oldest: 40}},
		},
	}
}

// TestMatches: a filter finds clients by network and by all names that a list shows, in any case of letters.
func TestMatches(t *testing.T) {
	for filter, want := range map[string][]int{
		"": {0, 1, 2}, " 192.0.2.0/24 ": {0, 1}, "NFS": {0, 2}, "rdma": {1}, "blue": {0}, "stor": {1}, "green": {2}, ":701": {1}, "red": nil,
	} {
		keeps, got := Matches(filter), []int(nil)
		for i, r := range testReports() {
			if keeps(r) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", filter, got, want)
		}
	}
}

// TestOrder: each order puts the clients first that it is about.
func TestOrder(t *testing.T) {
	for by, want := range map[string][]int{
		status.SortBytes: {2, 0, 1}, status.SortOldest: {2, 0, 1}, status.SortCalls: {1, 0, 2},
		status.SortAddress: {0, 2, 1}, // one that is mapped sorts with IPv6
		status.SortWaiting: {1, 0, 2}, "": {1, 0, 2},
	} {
		all := testReports()
		sorted := slices.Clone(all)
		slices.SortFunc(sorted, Order(by))
		var got []int
		for _, r := range sorted {
			got = append(got, slices.Index(all, r))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", by, got, want)
		}
	}
}
