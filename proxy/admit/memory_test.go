package admit

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// A memoryBed is a Memory with 32 MiB and clients that have nothing else.
type memoryBed struct {
	t     *testing.T
	arena *regmem.Arena
	hosts *Hosts
	m     *Memory
}

// nobody is a Population without clients.
func nobody(func(*Client, func() Sending) int64, func([]Burden)) {}

func newMemoryBed(t *testing.T) *memoryBed {
	a, err := regmem.New(regmem.Options{Budget: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	log := zerolog.Nop()
	return &memoryBed{t: t, arena: a, hosts: NewHosts(), m: NewMemory(a.Account("calls", 32<<20), metrics.New(), nobody, &log)}
}

// client is another client at an address of host number i.
func (b *memoryBed) client(i byte) *Client {
	h := b.hosts.Join(netip.AddrFrom4([4]byte{10, 0, 0, i}))
	return &Client{starter: starter{waiter: gates.MakeWaiter(&fakeWaiter{}, h.id), host: h}}
}

// known is a client of host number i that has sent 8 MiB.
func (b *memoryBed) known(i byte) *Client {
	f := b.client(i)
	f.host.memory.sent.Store(8 << 20)
	return f
}

func (b *memoryBed) lease(f *Client, n int) *regmem.Lease {
	b.t.Helper()
	l, err := b.m.Lease(f, b.m.account, n)
	if err != nil {
		b.t.Fatalf("no %d octets: %v; %d are in use", n, err, b.m.account.Taken())
	}
	return l
}

func (b *memoryBed) refuses(f *Client, n int, why string) {
	b.t.Helper()
	if l, err := b.m.Lease(f, b.m.account, n); err == nil {
		b.m.Returned(f, b.m.account, l)
		b.t.Errorf("%d octets are lent though %s", n, why)
	}
}

// all leases n octets again and again until f has to wait, and returns the leases.
func (b *memoryBed) all(f *Client, n int) (all []*regmem.Lease) {
	for {
		l, err := b.m.Lease(f, b.m.account, n)
		if err != nil {
			return all
		}
		all = append(all, l)
	}
}

// TestCallMemoryShare: a host leaves about as much as it takes, however many connections it opens.
func TestCallMemoryShare(t *testing.T) {
	b := newMemoryBed(t)
	limit := b.m.account.Limit()
	for i := range byte(4) {
		for range 20 {
			b.all(b.known(1+i), 1<<20)
			b.all(b.known(1+i), 60<<10)
			b.all(b.known(1+i), 8<<10)
		}
		free, share := limit-b.m.account.Taken(), limit>>(1+i)
		if free < share-1<<20 {
			t.Errorf("%d hosts leave %d octets, want about %d", i+1, free, share)
		}
	}
	b.lease(b.client(9), 8<<10)
}

// TestCallMemoryUnproven: hosts that have sent nothing so far do not take what the others need.
func TestCallMemoryUnproven(t *testing.T) {
	b := newMemoryBed(t)
	var got []*regmem.Lease
	var clients []*Client
	for i := range byte(200) {
		f := b.client(i)
		l, err := b.m.Lease(f, b.m.account, 60<<10)
		if err == nil {
			clients, got = append(clients, f), append(got, l)
			b.all(f, 4<<20)
		}
	}
	if free := b.m.account.Limit() - b.m.account.Taken(); free < 6<<20 {
		t.Errorf("%d octets are left", free)
	}
	if len(got) == 200 {
		t.Error("each of 200 hosts has a mid block")
	}
	f := b.known(250)
	for range 3 {
		b.lease(f, 1<<20)
		b.lease(f, 60<<10)
	}
	// What has come whole counts for the part of the unproven no more, and proves its host.
	was := b.m.unproven[midBlock].Load()
	size := int64(got[0].Size())
	if n := b.m.Arrived(clients[0], size); n != size {
		t.Errorf("a whole Call gives back %d octets, want %d", n, size)
	}
	if n := b.m.unproven[midBlock].Load(); n != was-size {
		t.Errorf("%d octets are unproven, want %d", n, was-size)
	}
	if !clients[0].host.proven(size) {
		t.Error("the host is not proven")
	}
	for _, f := range clients {
		b.m.Left(f)
	}
	if n := b.m.unproven[midBlock].Load() + b.m.unproven[bulkBlock].Load(); n != 0 {
		t.Errorf("%d octets are unproven after the clients have gone", n)
	}
}

// TestCallMemoryLine: clients wait in a line, in turn by host, and keep their turn for a while.
func TestCallMemoryLine(t *testing.T) {
	b := newMemoryBed(t)
	b.m.ticking = true // the test looks itself
	var held []*regmem.Lease
	for i := range byte(27) {
		held = append(held, b.lease(b.known(100+i), 1000<<10))
	}
	var called []byte
	wait := func(i byte, f *Client, n int) {
		b.refuses(f, n, "others hold it")
		b.m.Wait(f, n, func() { called = append(called, i) })
	}
	x, y, gone := b.known(2), b.known(3), b.known(4)
	wait(2, x, 1<<20)
	wait(4, gone, 1<<20)
	wait(2, b.known(2), 1<<20)
	wait(3, y, 1<<20)
	gone.waiter.Conn().Close(nil)
	give := func() {
		l := held[0]
		held = held[1:]
		size := int64(l.Size())
		l.Release()
		b.m.Give(b.known(100).host, size)
	}
	give()
	if string(called) != "\x02" {
		t.Fatalf("clients %v were called after one release, want the first", called)
	}
	b.refuses(b.known(5), 1<<20, "a turn is kept")
	give()
	if string(called) != "\x02\x03" {
		t.Fatalf("clients %v were called, want one of each host", called)
	}
	b.lease(x, 1<<20)
	for range turnTicks {
		b.m.look()
	}
	// The turn of y is over, and the second client of host 2 has it.
	if string(called) != "\x02\x03\x02" {
		t.Fatalf("clients %v were called, want host 2 again", called)
	}
	if n := b.m.waiters.Load(); n != 0 {
		t.Errorf("%d clients wait", n)
	}
	for range turnTicks {
		b.m.look()
	}
	if b.m.pledged != 0 || len(b.m.turns) != 0 {
		t.Errorf("%d octets in %d turns are kept for ever", b.m.pledged, len(b.m.turns))
	}
}

// TestCallMemoryNoBlock: the rules permit a client a block, and the arena has no such block. The client is called
// when the line is looked at, and not again and again.
func TestCallMemoryNoBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBed(t)
		others := b.arena.Account("others", 0)
		var all []*regmem.Lease
		for _, n := range []int{1 << 20, 60 << 10, 1 << 10} {
			for l, err := others.Lease(n); err == nil; l, err = others.Lease(n) {
				all = append(all, l)
			}
			f, called := b.known(2), 0
			var ask func()
			ask = func() {
				if called++; called > 100 {
					panic("called again and again")
				}
				b.refuses(f, n, "there is no such block")
				b.m.Wait(f, n, ask)
			}
			b.refuses(f, n, "there is no such block")
			b.m.Wait(f, n, ask)
			time.Sleep(3*memoryTick + memoryTick/2)
			f.waiter.Conn().Close(nil)
			synctest.Wait()
			if called != 3 {
				t.Errorf("%d octets: called %d times in 3 looks", n, called)
			}
			time.Sleep(time.Second) // until nobody waits
		}
		f, called := b.known(3), 0
		b.refuses(f, 1<<20, "there is no such block")
		b.m.Wait(f, 1<<20, func() { called++ })
		for _, l := range all {
			l.Release()
		}
		time.Sleep(memoryTick)
		synctest.Wait()
		if called != 1 {
			t.Errorf("called %d times after there is memory, want once", called)
		}
		b.lease(f, 1<<20)
		time.Sleep(time.Second)
	})
}

// TestHostRemembersMemory: a client that connects again does not get another share while its
// Calls are under way.
func TestHostRemembersMemory(t *testing.T) {
	b := newMemoryBed(t)
	f := b.client(1)
	h := f.host
	l := b.lease(f, 1<<20)
	size := b.m.Arrived(f, int64(l.Size()))
	b.hosts.Leave(h)
	g := b.client(1)
	if g.host != h {
		t.Error("the host is another one after a reconnect")
	}
	b.hosts.Leave(h)
	l.Release()
	b.m.Give(h, size)
	if len(b.hosts.of) != 0 || b.m.bulk.Load() != 0 {
		t.Errorf("%d hosts are remembered, with %d octets in bulk blocks", len(b.hosts.of), b.m.bulk.Load())
	}
}

// TestSlowSender: a client is slow if it sends too little for a second in which the bridge reads.
func TestSlowSender(t *testing.T) {
	hold := func(octets int64) Sending { return Sending{Held: 4 << 20, Octets: octets, Ready: true} }
	paused, next := hold(0), hold(0)
	paused.Ready, next.Calls = false, 1
	for _, tt := range []struct {
		name  string
		looks []Sending
		slow  bool
	}{
		{"sends nothing", []Sending{hold(0), hold(0), hold(0)}, true},
		{"sends a little", []Sending{hold(0), hold(60_000), hold(120_000)}, true},
		{"sends 1 MiB/s", []Sending{hold(0), hold(1 << 19), hold(2 << 19)}, false},
		{"has just begun", []Sending{hold(0), hold(0)}, false},
		{"is not read from", []Sending{hold(0), paused, hold(0), hold(0)}, false},
		{"sends another Call", []Sending{hold(0), hold(0), next}, false},
		{"holds nothing", []Sending{{Ready: true}, {Ready: true}, {Ready: true}}, false},
	} {
		var l sendingLook
		var held int64
		for i, s := range tt.looks {
			held = l.see(7+i, s)
		}
		if slow := held > 0; slow != tt.slow {
			t.Errorf("%s: slow is %v", tt.name, slow)
		}
	}
}
