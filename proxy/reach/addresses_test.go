package reach

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
)

// A connection is one that was made, and does nothing.
type connection struct{ pool.Member }

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
			return connection{}, nil
		})
		if m == nil || err != nil {
			t.Errorf("the last answers: %v, %v", m, err)
		}

		tries := 0
		_, err = tryAll(t.Context(), addrs, func(context.Context, netip.Addr) (pool.Member, error) {
			tries++
			return nil, os.NewSyscallError("socket", syscall.EMFILE)
		})
		if tries != 1 || !IsLocal(err) {
			t.Errorf("without descriptors: %d attempts, %v", tries, err)
		}
	})
}

// TestAddressThatWorked: the address of a name whose server answered last is tried first, as long as the
// name has it, and those whose servers accepted a connection and did not answer are tried last. The others
// keep the resolver's order.
func TestAddressThatWorked(t *testing.T) {
	six, four, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	all := []netip.Addr{six, four, other}
	synctest.Test(t, func(t *testing.T) {
		l := NewAddresses(nil)
		try := func(a netip.Addr) *Trial {
			time.Sleep(time.Second)
			return &Trial{l: l, endpoint: "storage:2049", addr: a, began: time.Now()}
		}
		answers := func(a netip.Addr) func() { return func() { try(a).answered() } }
		ends := func(a netip.Addr, err error) func() { return func() { try(a).ended(err) } }
		for _, x := range []struct {
			why          string
			before       func()
			names, order []netip.Addr
		}{
			{"nothing is known", func() {}, all, []netip.Addr{six, four, other}},
			{"four has answered", answers(four), all, []netip.Addr{four, six, other}},
			{"the name's addresses change their order", func() {}, []netip.Addr{other, six, four}, []netip.Addr{four, other, six}},
			{"the name has it no more", func() {}, []netip.Addr{six, other}, []netip.Addr{six, other}},
			{"six has answered", answers(six), []netip.Addr{six, four}, []netip.Addr{six, four}},
			{"the bridge has closed the connection", ends(six, pool.ErrClosed), all, []netip.Addr{six, four, other}},
			{"it has closed it in order", ends(six, nil), all, []netip.Addr{six, four, other}},
			{"it had no memory for it", ends(six, syscall.ENOMEM), all, []netip.Addr{six, four, other}},
			{"six has answered on a later connection", func() {
				first := try(six)
				try(six).answered()
				first.ended(io.EOF)
			}, all, []netip.Addr{six, four, other}},
			{"six did not answer", ends(six, io.EOF), all, []netip.Addr{four, other, six}},
			{"four did not answer either", ends(four, io.EOF), all, []netip.Addr{other, six, four}},
			{"nor six, again", ends(six, io.EOF), all, []netip.Addr{other, four, six}},
			{"no address answers", ends(other, io.EOF), all, []netip.Addr{four, six, other}},
			{"six answers", answers(six), all, []netip.Addr{six, four, other}},
			{"other answers", answers(other), all, []netip.Addr{other, six, four}},
			{"the name has lost four for a while", func() { l.order("storage:2049", []netip.Addr{six}) }, all, []netip.Addr{other, six, four}},
		} {
			x.before()
			if got := l.order("storage:2049", slices.Clone(x.names)); !slices.Equal(got, x.order) {
				t.Errorf("%s: %v is tried as %v, want %v", x.why, x.names, got, x.order)
			}
			if got := l.order("storage:2050", slices.Clone(all)); !slices.Equal(got, all) {
				t.Errorf("%s: on another port %v", x.why, got)
			}
		}
	})
}
