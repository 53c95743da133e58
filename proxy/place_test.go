package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"
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

// TestTryAll: all addresses of a name are tried in order, each in its part of the time, and none
// after a failure that is this host's own.
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
		if _, err := tryAll(ctx, addrs, hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("all hang: %v", err)
		}
		if d := time.Since(began); d != 9*time.Second || !slices.Equal(tried, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}) {
			t.Errorf("tried %v in %v", tried, d)
		}

		refused := errors.New("refused")
		m, err := tryAll(t.Context(), addrs, func(_ context.Context, a netip.Addr) (pool.Member, error) {
			if a != addrs[2] {
				return nil, refused
			}
			return &tcpConn{}, nil
		})
		if m == nil || err != nil {
			t.Errorf("the last answers: %v, %v", m, err)
		}

		tries := 0
		_, err = tryAll(t.Context(), addrs, func(context.Context, netip.Addr) (pool.Member, error) {
			tries++
			return nil, os.NewSyscallError("socket", syscall.EMFILE)
		})
		if tries != 1 || !isLocal(err) {
			t.Errorf("without descriptors: %d attempts, %v", tries, err)
		}
	})
}

// TestAddressThatWorked: the address of a name that worked last is tried first, as long as the
// name has it; the others keep the resolver's order.
func TestAddressThatWorked(t *testing.T) {
	var l addresses
	six, four, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, x := range []struct {
		worked       netip.Addr
		names, order []netip.Addr
	}{
		{netip.Addr{}, []netip.Addr{six, four, other}, []netip.Addr{six, four, other}},
		{four, []netip.Addr{six, four, other}, []netip.Addr{four, six, other}},
		{four, []netip.Addr{other, six, four}, []netip.Addr{four, other, six}},
		{four, []netip.Addr{six, other}, []netip.Addr{six, other}},
		{six, []netip.Addr{six, four}, []netip.Addr{six, four}},
	} {
		if x.worked.IsValid() {
			l.answered(address{"storage", x.worked})
		}
		if got := l.order("storage", slices.Clone(x.names)); !slices.Equal(got, x.order) {
			t.Errorf("%v worked: %v is tried as %v, want %v", x.worked, x.names, got, x.order)
		}
	}
}

// TestAddressWithoutAnswer: addresses where the server has not answered are tried after the others, until it does.
func TestAddressWithoutAnswer(t *testing.T) {
	var l addresses
	six, four, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	want := func(why string, order ...netip.Addr) {
		t.Helper()
		if got := l.order("storage", []netip.Addr{six, four, other}); !slices.Equal(got, order) {
			t.Errorf("%s: tried as %v, want %v", why, got, order)
		}
	}
	at := func(a netip.Addr) address { return address{"storage", a} }
	want("at first", six, four, other)
	l.missed(at(six))
	want("the first does not answer", four, other, six)
	l.answered(at(four))
	l.missed(at(other))
	want("another does not answer", four, six, other)
	l.missed(at(four))
	want("the one that worked does not answer", six, other, four)
	l.answered(at(other))
	want("another answers", other, six, four)
	l.missed(address{})
	if !l.several("storage:2049") || l.several("192.0.2.1:2049") || l.several("elsewhere:2049") {
		t.Error("the name with three addresses is not the only one with several")
	}
	if l.order("storage", []netip.Addr{six}); l.several("storage:2049") {
		t.Error("a name that has one address is said to have several")
	}
}

const placeOfThree = 1
