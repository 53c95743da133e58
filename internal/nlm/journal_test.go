package nlm

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestRestart: a bridge that restarts knows who holds what, and who waits.
func TestRestart(t *testing.T) {
	n := newNetwork(t)
	server := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		if r := parsed(t, c); c.Procedure == procLock && r.start == 1000 {
			return statOf(blocked)
		}
		return statOf(granted)
	})
	offers := make(chan request, 1)
	client := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		if c.Program == oncrpc.ProgramNSM {
			return []byte{}
		}
		offers <- parsed(t, c)
		return statOf(granted)
	})
	state := t.TempDir()
	s := n.bridge(server, Options{State: state})
	client.do(s, "tcp", 4, procLock, client.lock(1, 0, 10))
	client.do(s, "tcp", 4, procLock, client.lock(1, 20, 10))
	client.do(s, "tcp", 4, procUnlock, client.lock(1, 5, 20))
	client.do(s, "tcp", 4, procLock, client.lock(1, 1000, 10))
	server.call(s.Addr(), "udp", oncrpc.ProgramNSM, 1, procNotify, xdr.AppendUint32(xdr.AppendOpaque(nil, []byte("server")), 9))
	want := s.table.owners[identity{client: client.addr, name: "client", svid: 1}]

	testkit.Eventually(t, "the client was told", func() bool { return len(s.table.owed()) == 0 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next := n.bridge(server, Options{State: state})
	got := next.table.owners[want.identity]
	if got == nil || got.path != want.path || string(got.oh) != string(want.oh) || !got.credential.equal(want.credential) || got.state != want.state || got.number != want.number {
		t.Fatalf("%+v, want %+v", got, want)
	}
	f := got.files[string(client.lock(1, 0, 0).handle)]
	if f == nil || !slices.Equal(f.held, []span{{0, 5}, {25, 30}}) || !slices.Equal(f.waits, []wait{{span{1000, 1010}, 1, false}}) {
		t.Errorf("%+v", f)
	}
	if next.table.restarted(server.addr, 9) || !next.table.restarted(server.addr, 11) {
		t.Error("the state of the server is forgotten")
	}
	offer := client.lock(got.number, 1000, 10)
	offer.oh = next.table.far(got, got.oh)
	if stat := server.do(next, "tcp", 4, procGranted, offer); stat != granted {
		t.Errorf("GRANTED: stat %d", stat)
	}
	if o := <-offers; o.svid != 1 || string(o.oh) != "1@client" {
		t.Errorf("the client is offered %+v", o)
	}
	if x := next.Snapshot(); x.Held != 3 || x.Waiting != 0 {
		t.Errorf("%+v", x)
	}
}

// TestTidy: a file does not grow with what is no more, and says the same after it was written anew.
func TestTidy(t *testing.T) {
	state := t.TempDir()
	table := openTable(t, state)
	id := identity{client: netip.MustParseAddr("192.0.2.1"), name: "a\x00b\xff", svid: 1}
	for i := range uint64(2 * slackLines) {
		r := &request{handle: []byte{0xff, 0}, start: 2 * i, length: 1}
		o := table.begin(id, path{local: netip.MustParseAddr("192.0.2.2"), version: 4}, r, credential{})
		table.settle(o, r, granted, true)
		if i%16 != 0 {
			table.released(id, r, true)
		}
	}
	if lines := table.journal.lines; lines > slackLines+2*(2*slackLines/16+2) {
		t.Errorf("%d lines", lines)
	}
	before := *table.owners[id]
	table.close()
	if after := openTable(t, state); len(after.owners) != 1 || !slices.Equal(after.owners[id].files["\xff\x00"].held, before.files["\xff\x00"].held) || after.all.held != 2*slackLines/16 {
		t.Errorf("%+v, want %+v", after.owners, before)
	}
}

func openTable(t *testing.T, state string) *table {
	t.Helper()
	table := newTable([32]byte{1})
	log := zerolog.New(zerolog.NewTestWriter(t))
	if err := openJournal(state, table, &log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.close)
	return table
}

// TestOwed: a bridge that is killed while it tells clients of the server's restart, or frees the locks of a client, goes
// on with it.
func TestOwed(t *testing.T) {
	n := newNetwork(t)
	var deaf atomic.Bool
	server := n.peer(func(c *oncrpc.Call, _ bool) []byte {
		if c.Procedure == procUnlock && deaf.Load() {
			return nil
		}
		return statOf(granted)
	})
	told := make(chan bool, 8)
	client := n.peer(func(*oncrpc.Call, bool) []byte {
		if deaf.Load() {
			return nil
		}
		told <- true
		return []byte{}
	})
	other := n.peer(func(*oncrpc.Call, bool) []byte { return []byte{} })
	state := t.TempDir()
	s := n.bridge(server, Options{State: state})
	client.do(s, "tcp", 4, procLock, client.lock(1, 0, 10))
	other.do(s, "tcp", 4, procLock, other.lock(1, 0, 10))
	deaf.Store(true)
	for _, p := range []*peer{server, other} {
		p.call(s.Addr(), "udp", oncrpc.ProgramNSM, 1, procNotify, xdr.AppendUint32(xdr.AppendOpaque(nil, nil), 9))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	deaf.Store(false)
	s = n.bridge(server, Options{State: state})
	<-told
	<-told
	testkit.Eventually(t, "the other one's lock is freed", func() bool { return s.Snapshot().Held == 1 })
	testkit.Eventually(t, "nothing is left to do", func() bool { return len(s.table.owed()) == 0 })
}

// TestDenied: what the server has not granted is not in the file, and what the owner had before is.
func TestDenied(t *testing.T) {
	state := t.TempDir()
	table := openTable(t, state)
	id := identity{client: netip.MustParseAddr("192.0.2.1"), svid: 1}
	for _, x := range []struct {
		start, length uint64
		block         uint32
		stat          uint32
	}{{10, 10, 0, granted}, {0, 15, 0, denied}, {15, 15, 1, denied}, {12, 4, 1, denied}, {50, 5, 1, granted}} {
		r := &request{block: x.block, start: x.start, length: x.length}
		table.settle(table.begin(id, path{local: netip.MustParseAddr("192.0.2.2")}, r, credential{}), r, x.stat, true)
	}
	table.close()
	if f := openTable(t, state).owners[id].files[""]; !slices.Equal(f.held, []span{{10, 20}, {50, 55}}) || len(f.waits) != 0 {
		t.Errorf("%+v", f)
	}
}

// TestFreed: what a client had that has restarted is not in the file any more.
func TestFreed(t *testing.T) {
	state := t.TempDir()
	table := openTable(t, state)
	id := identity{client: netip.MustParseAddr("192.0.2.1"), svid: 1}
	for _, stat := range []uint32{granted, blocked} {
		r := &request{block: 1, start: uint64(stat) * 10, length: 5}
		table.settle(table.begin(id, path{local: netip.MustParseAddr("192.0.2.2")}, r, credential{}), r, stat, true)
	}
	for _, l := range table.lost(id.client, nil) {
		table.freed(&l)
	}
	table.close()
	if x := openTable(t, state).snapshot(); x.Held+x.Waiting+x.Clients != 0 {
		t.Errorf("%+v", x)
	}
}

// TestCrossed: what is unlocked while the client is being asked about it leaves nothing in the file.
func TestCrossed(t *testing.T) {
	for name, cross := range map[string]func(*table, identity){
		"UNLOCK":                      func(t *table, id identity) { t.released(id, &request{}, true) },
		"a restart":                   func(t *table, id identity) { l := t.lost(id.client, nil)[0]; t.freed(&l) },
		"no UNLOCK":                   func(*table, identity) {},
		"an UNLOCK of something else": func(t *table, id identity) { t.released(id, &request{start: 1}, true) },
	} {
		for e := grantTaken; e <= grantUnanswered; e++ {
			state := t.TempDir()
			table := openTable(t, state)
			id := identity{client: netip.MustParseAddr("192.0.2.1"), svid: 1}
			r := &request{block: 1, length: 5}
			o := table.begin(id, path{local: netip.MustParseAddr("192.0.2.2")}, r, credential{})
			table.settle(o, r, blocked, true)
			r.svid = o.number
			_, _, _, end := table.offer(r)
			cross(table, id)
			end(e)
			now := table.snapshot()
			table.close()
			if x := openTable(t, state).snapshot(); x.Held != now.Held || x.Waiting != now.Waiting || (name == "UNLOCK" || name == "a restart") && x.Clients > 0 {
				t.Errorf("%s, %d: %+v, and after a restart %+v", name, e, now, x)
			}
		}
	}
}

// TestUnreadable: a file with a mistake is put aside, and what it says before that is known. A last line that is cut off
// is no mistake.
func TestUnreadable(t *testing.T) {
	good := `{"op":"owner","number":1,"client":"192.0.2.1","local":"192.0.2.2","svid":5,"version":4}` + "\n" + `{"op":"hold","number":1,"end":9}` + "\n"
	for _, tt := range []struct {
		text  string
		aside bool
	}{
		{good, false},
		{good + `{"op":"ho`, false},
		{good + "\x00\x00\x00\n", true},
		{good + `{"op":"else"}` + "\n", true},
		{good + `{"op":"hold","number":2,"end":9}` + "\n", true},
		{good + `{"op":"hold","number":1,"start":9,"end":9}` + "\n", true},
		{good + `{"op":"owner","number":1,"client":"192.0.2.1","local":"192.0.2.2","svid":6}` + "\n", true},
		{good + `{"op":"owner","number":2,"client":"192.0.2.1","local":"192.0.2.2","svid":5}` + "\n", true},
		{good + `{"op":"owner","number":2,"client":"192.0.2","local":"192.0.2.2","svid":5}` + "\n", true},
		{good + strings.Repeat("x", 2*maxLine) + "\n", true},
	} {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, "locks"), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		table := openTable(t, state)
		if x := table.snapshot(); x.Held != 1 || x.Clients != 1 {
			t.Errorf("%.200q: %+v", tt.text, x)
		}
		aside, err := filepath.Glob(filepath.Join(state, "locks.unreadable-*"))
		if err != nil || (len(aside) > 0) != tt.aside {
			t.Errorf("%.200q: aside %q, %v", tt.text, aside, err)
		}
	}
}

// TestNoState: a directory that cannot be had does not keep the Server from starting.
func TestNoState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNetwork(t)
	s := n.bridge(n.peer(func(*oncrpc.Call, bool) []byte { return statOf(granted) }), Options{State: filepath.Join(file, "locks")})
	client := n.peer(nil)
	if got := client.do(s, "tcp", 4, procLock, client.lock(1, 0, 0)); got != granted {
		t.Errorf("stat %d", got)
	}
	testkit.Eventually(t, "loaded", func() bool { return s.Snapshot().Held == 1 })
}

// TestKilledAnywhere: a bridge may be killed after each octet that it writes to its file. The next one remembers all the
// same what a client holds.
func TestKilledAnywhere(t *testing.T) {
	state := t.TempDir()
	table := openTable(t, state)
	id := identity{client: netip.MustParseAddr("192.0.2.1"), name: "c", svid: 1}
	lock := func(start, length uint64, block uint32) (*owner, *request) {
		r := &request{block: block, exclusive: 1, handle: []byte{1}, start: start, length: length}
		return table.begin(id, path{local: netip.MustParseAddr("192.0.2.2"), version: 4}, r, credential{}), r
	}
	o, r := lock(0, 10, 0)
	table.settle(o, r, granted, true)
	size := func() int {
		b, err := os.ReadFile(filepath.Join(state, "locks"))
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	begun := size()
	o, r = lock(0, 20, 0)
	table.settle(o, r, denied, true)
	o, r = lock(5, 10, 1)
	table.settle(o, r, blocked, true)
	r.svid = o.number
	_, _, _, end := table.offer(r)
	end(grantRefused)
	o, r = lock(0, 10, 1)
	table.released(id, r, false) // as by CANCEL
	table.settle(o, r, denied, true)
	b, err := os.ReadFile(filepath.Join(state, "locks"))
	if err != nil {
		t.Fatal(err)
	}
	for n := begun; n <= len(b); n++ {
		cut := t.TempDir()
		if err := os.WriteFile(filepath.Join(cut, "locks"), b[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		after := openTable(t, cut)
		o := after.owners[id]
		if o == nil || len(without(span{0, 10}, o.files["\x01"].held)) > 0 {
			t.Fatalf("cut after %d of %d octets, it does not know what is held: %s", n, len(b), b[begun:n])
		}
	}
}

// TestLostWhileAsked: a client that crashes while it is asked whether it takes a lock has its LOCK cancelled at the server.
func TestLostWhileAsked(t *testing.T) {
	table := openTable(t, t.TempDir())
	id := identity{client: netip.MustParseAddr("192.0.2.1"), name: "c", svid: 1}
	r := &request{block: 1, exclusive: 1, handle: []byte{1}, start: 5, length: 10}
	o := table.begin(id, path{local: netip.MustParseAddr("192.0.2.2"), version: 4}, r, credential{})
	table.settle(o, r, blocked, true)
	r.svid = o.number
	_, _, _, end := table.offer(r)
	all := table.lost(id.client, nil)
	if len(all) != 1 || len(all[0].waits) != 1 || all[0].waits[0].span != r.span() || all[0].waits[0].exclusive != 1 {
		t.Fatalf("lost %+v", all)
	}
	table.freed(&all[0])
	end(grantUnanswered)
	if c := table.counts(); c != (count{}) {
		t.Errorf("left: %+v", c)
	}
}
