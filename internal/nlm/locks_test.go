package nlm_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nlmtest"
)

// The file of these tests.
var file = []byte("file")

func exclusive(svid uint32) nlmtest.Args {
	return nlmtest.Args{FH: file, SVID: svid, Exclusive: true, Block: true}
}

// wait sends a LOCK that must wait, and returns what its GRANTED closes.
func (w *world) wait(c *nlmtest.Client, a nlmtest.Args) <-chan struct{} {
	w.t.Helper()
	granted := c.Expect(a)
	w.do(c, nlmtest.Lock, a, nlmtest.StatBlocked)
	return granted
}

func (w *world) granted(c *nlmtest.Client, granted <-chan struct{}) {
	w.t.Helper()
	select {
	case <-granted:
	case <-time.After(testkit.Patience):
		w.t.Fatalf("%s is not granted its lock", c.Name)
	}
}

// styles are those of the tests that try each.
func styles() map[string]nlmtest.Style {
	all := map[string]nlmtest.Style{}
	for name, s := range map[string]nlmtest.Style{"linux": nlmtest.Linux, "macos": nlmtest.MacOS} {
		for _, version := range []uint32{1, 3, 4} {
			for _, network := range []string{"tcp", "udp"} {
				s.Version, s.Network = version, network
				all[fmt.Sprintf("%s/v%d/%s", name, version, network)] = s
			}
		}
	}
	return all
}

// TestStyles: a client of each kind waits for the lock of another one, gets it, and leaves nothing behind.
func TestStyles(t *testing.T) {
	for name, style := range styles() {
		for _, synchronous := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/synchronous=%v", name, synchronous), func(t *testing.T) {
				w := newWorld(t, style, nlmtest.Linux)
				w.server.Synchronous = synchronous
				c, other := w.clients[0], w.clients[1]
				w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
				w.do(c, nlmtest.Test, exclusive(0), nlmtest.StatDenied)
				a := exclusive(0)
				a.Block = false
				w.do(c, nlmtest.Lock, a, nlmtest.StatDenied)
				granted := w.wait(c, exclusive(0))
				w.settled(1, 1)
				if s := w.bridge.Snapshot(); s.Held != 1 || s.Waiting != 1 || s.Clients != 2 {
					t.Errorf("the bridge has %+v, want a lock, one that waits, and two clients", s)
				}
				w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
				w.granted(c, granted)
				w.do(other, nlmtest.Test, exclusive(0), nlmtest.StatDenied)
				w.do(c, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
				w.settled(0, 0)
				w.idle()
			})
		}
	}
}

// TestCancelCrossesGrant: a client that no longer waits denies the GRANTED. Its UNLOCK takes the lock that the server
// has given it.
func TestCancelCrossesGrant(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	c, other := w.clients[0], w.clients[1]
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	w.wait(c, exclusive(0))
	c.Forget(exclusive(0)) // a signal came
	w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	testkit.Eventually(t, "the GRANTED is denied", func() bool { return w.server.Foreign.Load() > 0 })
	w.settled(1, 0) // Linux 6.1 keeps it
	w.do(c, nlmtest.Cancel, exclusive(0), nlmtest.StatGranted)
	w.do(c, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.settled(0, 0)
	w.idle()
}

// TestGrantIsRepeated: the server repeats a GRANTED whose answer is lost. Linux clients deny the repeat, and newer servers
// take the lock back then, so the bridge itself says that the client has it.
func TestGrantIsRepeated(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	w.server.Frees = true
	c, other := w.clients[0], w.clients[1]
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	granted := w.wait(c, exclusive(0))
	w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.granted(c, granted)
	testkit.Eventually(t, "the server has the answer", func() bool { return w.server.Calls(nlmtest.Granted+nlmtest.ToRes) > 0 })
	held, _ := w.server.Held(string(file))
	for _, restarted := range []bool{false, true} {
		if restarted {
			w.restartBridge()
		}
		a := exclusive(held[0].SVID)
		a.Cookie = []byte{1, 2, 3, 4}
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		b, err := w.server.Call(ctx, "tcp", w.bridge.Addr(), nlmtest.ProgramNLM, 4, nlmtest.Granted, a.Append(nil, 4, nlmtest.Granted))
		cancel()
		r, ok := nlmtest.ParseResults(b, 4, nlmtest.Granted)
		if err != nil || !ok || r.Stat != nlmtest.StatGranted {
			t.Errorf("a repeated GRANTED, bridge restarted %v: status %d and %v, want %d", restarted, r.Stat, err, nlmtest.StatGranted)
		}
	}
	w.settled(1, 0)
}

// TestFreeAll: FREE_ALL of a client is for what that client has.
func TestFreeAll(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	for i, c := range w.clients {
		a := exclusive(0)
		a.Offset, a.Length = uint64(100*i), 10
		w.do(c, nlmtest.Lock, a, nlmtest.StatGranted)
		a.SVID, a.Offset = 1, a.Offset+20
		w.do(c, nlmtest.NMLock, a, nlmtest.StatGranted)
	}
	w.settled(4, 0)
	w.do(w.clients[0], nlmtest.FreeAll, nlmtest.Args{}, nlmtest.StatGranted)
	w.settled(2, 0)
	if n := w.server.Freed.Load(); n != 0 {
		t.Errorf("the server has got FREE_ALL %d times, want 0", n)
	}
	held, _ := w.server.Held(string(file))
	for _, h := range held {
		if h.First < 100 {
			t.Errorf("the first client has octets %d to %d", h.First, h.Last)
		}
	}
}

// TestShares: SHARE names its owner by oh alone, which two clients may choose alike.
func TestShares(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	w.clients[1].Name = w.clients[0].Name // so that oh is the same
	a := nlmtest.Args{FH: file, Mode: 2, Access: 2}
	w.do(w.clients[0], nlmtest.Share, a, nlmtest.StatGranted)
	w.do(w.clients[1], nlmtest.Share, a, nlmtest.StatDenied)
	w.do(w.clients[0], nlmtest.Unshare, a, nlmtest.StatGranted)
	w.do(w.clients[1], nlmtest.Share, a, nlmtest.StatGranted)
	w.clients[1].Stop()
	w.restartClient(w.clients[1])
	testkit.Eventually(t, "the SHARE of a client that has crashed is gone", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		r, err := w.clients[0].Do(ctx, nlmtest.Share, a)
		return err == nil && r.Stat == nlmtest.StatGranted
	})
}

// TestSameOwner: Linux clients count their owners from 0, and are not one another.
func TestSameOwner(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	w.clients[1].Name = w.clients[0].Name
	a := exclusive(0)
	a.Offset, a.Length = math.MaxInt64-10, 5
	w.do(w.clients[0], nlmtest.Lock, a, nlmtest.StatGranted)
	a.Block = false
	w.do(w.clients[1], nlmtest.Lock, a, nlmtest.StatDenied)
	w.do(w.clients[1], nlmtest.Unlock, a, nlmtest.StatGranted)
	w.settled(1, 0)
}

// TestCrashInGrace: a client crashes while the server is in its grace period, in which it unlocks nothing. Its locks go
// after that.
func TestCrashInGrace(t *testing.T) {
	w := newWorld(t, nlmtest.Linux)
	c := w.clients[0]
	w.do(c, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	if err := w.server.Restart(); err != nil {
		t.Fatal(err)
	}
	<-c.Notices()
	a := exclusive(0)
	a.Reclaim = true
	w.do(c, nlmtest.Lock, a, nlmtest.StatGranted)
	c.Stop()
	w.restartClient(c)
	testkit.Eventually(t, "the bridge unlocks", func() bool { return w.server.Calls(nlmtest.Unlock) > 0 })
	w.server.EndGrace()
	w.settled(0, 0)
	w.idle()
}

// TestFreedAndForgotten: what a client waited for that has crashed is not back when the bridge restarts.
func TestFreedAndForgotten(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	c, other := w.clients[0], w.clients[1]
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	a := exclusive(0)
	a.Length = 10
	w.wait(c, a)
	c.Stop()
	w.restartClient(c)
	w.settled(1, 0)
	testkit.Eventually(t, "no LOCK waits", func() bool { return w.bridge.Snapshot().Waiting == 0 })
	w.restartBridge()
	if s := w.bridge.Snapshot(); s.Held != 1 || s.Waiting != 0 {
		t.Errorf("the bridge has %+v, want a lock, and none that waits", s)
	}
}

// TestReclaimWhileBridgeEnds: a bridge that ends does not answer a LOCK with reclaim that it could not pass on, because
// Linux takes LCK_DENIED_GRACE_PERIOD for the end of that lock. The client asks the next bridge.
func TestReclaimWhileBridgeEnds(t *testing.T) {
	w := newWorld(t, nlmtest.Linux)
	w.do(w.clients[0], nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	w.server.Stop()
	a := exclusive(0)
	a.Reclaim = true
	during(func() { w.do(w.clients[0], nlmtest.Lock, a, nlmtest.StatGranted) }, func() {
		testkit.Eventually(t, "the bridge has the LOCK", func() bool { return strings.Contains(w.log.String(), "nlm_server_unreachable") })
		w.restartBridge()
		if err := w.server.Restart(); err != nil {
			t.Error(err)
		}
	})
}

// TestLateRepeat: a client has sent a LOCK several times before it is answered, and unlocks at once. None of the others
// locks again after that.
func TestLateRepeat(t *testing.T) {
	w := newWorld(t, nlmtest.MacOS, nlmtest.Linux)
	mac, linux := w.clients[0], w.clients[1]
	w.server.Stop()
	during(func() {
		w.do(mac, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
		w.do(mac, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	}, func() {
		time.Sleep(time.Second) // the client repeats its Call five times
		if err := w.server.Start(); err != nil {
			t.Error(err)
		}
	})
	w.flown()
	w.settled(0, 0)
	w.idle()

	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c, err := linux.Dial(ctx, "udp", w.bridge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	send := func(xid, procedure uint32, a *nlmtest.Args) {
		t.Helper()
		if _, err := c.Write(nlmtest.Message(xid, nlmtest.ProgramNLM, 4, procedure, a.Append(nil, 4, procedure))); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(xid uint32) {
		t.Helper()
		b := make([]byte, 1000)
		for {
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if oncrpc.IsReply(b[:n], xid) {
				return
			}
		}
	}
	for i := range uint32(300) {
		a := exclusive(i)
		a.Cookie, a.Caller, a.State, a.FH = []byte{1, 2, 3, 4}, linux.Name, 1, binary.BigEndian.AppendUint32(nil, i)
		send(2*i, nlmtest.Lock, &a)
		answered(2 * i)
		send(2*i, nlmtest.Lock, &a)
		send(2*i+1, nlmtest.Unlock, &a)
		answered(2*i + 1)
	}
	w.flown()
	w.settled(0, 0)
	w.idle()
}

// A claim is a lock that a client has, from its answer until it sends UNLOCK.
type claim struct {
	who         string
	first, last uint64
	exclusive   bool
}

// TestTorture: clients lock and unlock one file at the same time, wait, and lose patience, while the bridge restarts. Each
// gets its locks, none has one that is in another's way, and nothing is left.
func TestTorture(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 20
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	mac := nlmtest.MacOS
	mac.Network = "tcp"
	w := newWorld(t, nlmtest.Linux, nlmtest.FreeBSD, nlmtest.MacOS, mac, nlmtest.Linux)
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	defer cancel()
	var mu sync.Mutex
	var claims []*claim
	var work sync.WaitGroup
	enter := func(n *claim) {
		mu.Lock()
		defer mu.Unlock()
		for _, o := range claims {
			if o.who != n.who && (o.exclusive || n.exclusive) && n.first <= o.last && o.first <= n.last {
				t.Errorf("%+v and %+v are held at the same time", *o, *n)
			}
		}
		claims = append(claims, n)
	}
	exit := func(n *claim) {
		mu.Lock()
		defer mu.Unlock()
		claims = slices.DeleteFunc(claims, func(o *claim) bool { return o == n })
	}
	one := func(c *nlmtest.Client, svid uint32, rng *rand.Rand) error {
		a := nlmtest.Args{FH: file, SVID: svid, Exclusive: rng.IntN(3) > 0, Offset: uint64(rng.IntN(6)), Length: uint64(1 + rng.IntN(3)), Block: rng.IntN(4) > 0}
		granted := c.Expect(a)
		defer c.Forget(a)
		r, err := c.Do(ctx, nlmtest.Lock, a)
		if err != nil {
			return err
		}
		has := r.Stat == nlmtest.StatGranted
		if r.Stat == nlmtest.StatBlocked {
			patience := testkit.Patience
			if rng.IntN(3) == 0 {
				patience = time.Duration(rng.IntN(3000)) * time.Microsecond
			}
			select {
			case <-granted:
				has = true
			case <-time.After(patience):
				if patience == testkit.Patience {
					return fmt.Errorf("%s/%d waits for ever", c.Name, svid)
				}
				c.Forget(a)
				if _, err := c.Do(ctx, nlmtest.Cancel, a); err != nil {
					return err
				}
			}
		}
		if has {
			n := &claim{fmt.Sprintf("%s/%d", c.Name, svid), a.Offset, a.Offset + a.Length - 1, a.Exclusive}
			enter(n)
			time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
			exit(n)
		}
		_, err = c.Do(ctx, nlmtest.Unlock, a)
		return err
	}
	for i, c := range w.clients {
		for svid := range uint32(2) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)<<8|uint64(svid)))
			work.Go(func() {
				for range rounds {
					if err := one(c, svid, rng); err != nil {
						t.Errorf("%s/%d: %v", c.Name, svid, err)
						return
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Duration(20+rng.IntN(80)) * time.Millisecond):
			w.restartBridge()
		}
	}
	w.settled(0, 0)
	w.idle()
}

// TestLocksBeforeNotice: a client that has restarted locks a file before its notice is here, because a datagram is lost, say. Its
// processes have the same numbers as before: Linux counts from 0. The notice frees what the client had before, and not what it
// has locked since.
func TestLocksBeforeNotice(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge restarted %v", restarted), func(t *testing.T) {
			w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
			c, other := w.clients[0], w.clients[1]
			old, mine, waited := exclusive(0), exclusive(0), exclusive(0)
			old.FH, waited.FH = []byte("old"), []byte("waited")
			w.do(c, nlmtest.Lock, old, nlmtest.StatGranted)
			w.do(other, nlmtest.Lock, waited, nlmtest.StatGranted)
			w.wait(c, waited)
			w.settled(2, 1)
			c.Stop()
			if err := c.Reboot(); err != nil {
				t.Fatal(err)
			}
			w.do(c, nlmtest.Lock, mine, nlmtest.StatGranted)
			w.settled(3, 1)
			if restarted {
				w.restartBridge()
			}
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			c.Renotify(ctx)
			w.settled(2, 0)
			w.do(other, nlmtest.Test, old, nlmtest.StatGranted)
			w.do(other, nlmtest.Test, mine, nlmtest.StatDenied)
			w.do(c, nlmtest.Unlock, mine, nlmtest.StatGranted)
			w.do(other, nlmtest.Unlock, waited, nlmtest.StatGranted)
			w.settled(0, 0)
			w.idle()
		})
	}
}
