package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
)

// TestPlace: clients are spread evenly, keep their place, and keep it when another
// endpoint is added unless they move to that one.
func TestPlace(t *testing.T) {
	const clients, n = 4096, 4
	var counts [n]int
	moved := 0
	for i := range clients {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		at := endpointFor(a, n)
		counts[at]++
		if mapped := endpointFor(netip.AddrFrom16(a.As16()), n); mapped != at {
			t.Fatalf("%v is at %d, and at %d in the words of IPv6", a, at, mapped)
		}
		if next := endpointFor(a, n+1); next != at {
			moved++
			if next != n {
				t.Fatalf("%v moved from %d to %d, neither of which is new", a, at, next)
			}
		}
	}
	for i, c := range counts {
		if c < clients/n*9/10 || c > clients/n*11/10 {
			t.Errorf("%d clients at endpoint %d, want about %d", c, i, clients/n)
		}
	}
	if want := clients / (n + 1); moved < want*9/10 || moved > want*11/10 {
		t.Errorf("%d clients moved to the new endpoint, want about %d", moved, want)
	}
	// The values of the first release: a client must find its state after an upgrade.
	if at := endpointFor(netip.MustParseAddr("10.1.2.3"), 3); at != placeOfThree {
		t.Errorf("10.1.2.3 is at %d of 3, was at %d", at, placeOfThree)
	}
}

// TestTryAll: all addresses of a name are tried, each in its part of the time,
// beginning at another one each time.
func TestTryAll(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	synctest.Test(t, func(t *testing.T) {
		var tried []string
		hang := func(ctx context.Context, a netip.Addr) (pool.Member, error) {
			tried = append(tried, a.String())
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := tryAll(ctx, addrs, 1, hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("all hang: %v", err)
		}
		if d := time.Since(began); d != 9*time.Second || !slices.Equal(tried, []string{"192.0.2.2", "192.0.2.3", "192.0.2.1"}) {
			t.Errorf("tried %v in %v", tried, d)
		}

		refused := errors.New("refused")
		m, err := tryAll(t.Context(), addrs, 0, func(_ context.Context, a netip.Addr) (pool.Member, error) {
			if a != addrs[2] {
				return nil, refused
			}
			return &tcpConn{}, nil
		})
		if m == nil || err != nil {
			t.Errorf("the last answers: %v, %v", m, err)
		}
	})
}

const placeOfThree = 1
