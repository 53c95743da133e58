package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// A hanger is a client with Calls to a file system that does not answer. It connects again
// and sends them again when it has lost its connection, until they are answered or it is killed.
type hanger struct {
	name  string
	book  *book
	dice  *rand.Rand
	addr  string
	local net.IP
	calls int
	v4    bool // its Calls are COMPOUNDs, in one session

	outstanding map[uint32]*outstanding
}

// run returns when all Calls are answered, or ctx ends, which kills the client.
func (h *hanger) run(ctx context.Context) {
	h.outstanding = make(map[uint32]*outstanding)
	xid, session := h.dice.Uint32(), newSession(h.book.sessions.Add(1))
	for range h.calls {
		k := hung
		id := h.book.next.Add(1)
		xid++
		m := newCall(k, xid, id, 0)
		if h.v4 {
			k, m = hungSequence, newCompound(hungSequence, session, xid, id)
		}
		o := &outstanding{kind: k, id: id, m: m}
		h.book.begin(h.name, k, id, o.m)
		h.outstanding[xid] = o
	}
	for ctx.Err() == nil && len(h.outstanding) > 0 && !h.book.broken.Load() {
		l, err := dialTCP(ctx, h.addr, h.local)
		if err != nil {
			time.Sleep(between(h.dice, time.Millisecond, 50*time.Millisecond))
			continue
		}
		h.live(ctx, l.(*tcpLine))
	}
	h.book.abandon(slices.Collect(maps.Values(h.outstanding)))
}

// live is the life of one connection.
func (h *hanger) live(ctx context.Context, l *tcpLine) {
	defer l.close()
	// The bridge need not read more than it can send.
	stop := context.AfterFunc(ctx, func() { l.Conn.Close() })
	defer stop()
	if h.dice.IntN(2) == 0 {
		_ = l.Conn.(*net.TCPConn).SetLinger(0)
	}
	for _, xid := range slices.Sorted(maps.Keys(h.outstanding)) {
		o := h.outstanding[xid]
		h.book.transmit(o.id)
		if l.send(o.m, hungTimeout) != nil {
			return
		}
	}
	for len(h.outstanding) > 0 {
		select {
		case m := <-l.replies():
			h.answered(m)
		case <-l.ended():
			for {
				select {
				case m := <-l.replies():
					h.answered(m)
				default:
					return
				}
			}
		}
	}
}

func (h *hanger) answered(m []byte) {
	xid, o := h.book.match(h.name, h.outstanding, m)
	if o == nil {
		return
	}
	h.book.judge(h.name, o, m)
	h.book.end(o.id, 0)
	delete(h.outstanding, xid)
}

// stuckGroups are how many clients there are whose Calls hang, and how many Calls each has.
var stuckGroups = []struct {
	f              fault
	clients, calls int
}{
	{stuckOne, 1, 256},
	{stuckOne, 1, 16},
	{stuckMany, 60, 4},
	{stuckMany, 16, 1},
	{stuckSessions, 12, 16},
}

// stick has groups of clients one after the other whose Calls to s hang. A group is killed, or s
// answers after a while. At the end of ctx s answers.
func (p *crowd) stick(ctx context.Context, s *server) {
	dice := p.seed.dice("stuck", 0)
	defer s.heal()
	for ctx.Err() == nil && !p.book.broken.Load() {
		s.sicken()
		g := stuckGroups[dice.IntN(len(stuckGroups))]
		p.counts[g.f].Add(1)
		living, kill := context.WithCancel(p.end)
		var all sync.WaitGroup
		for i := range g.clients {
			h := &hanger{
				name: fmt.Sprintf("stuck client %d", i+1), book: p.book, dice: rand.New(rand.NewPCG(dice.Uint64(), 0)),
				addr: p.addrs["quiet"], local: net.IPv4(127, 0, 9, byte(i+1)), calls: g.calls, v4: g.f == stuckSessions,
			}
			all.Go(func() { h.run(living) })
		}
		pause(ctx, between(dice, 2*time.Second, 15*time.Second))
		if dice.IntN(2) == 0 {
			kill()
			pause(ctx, between(dice, 0, 2*time.Second))
		}
		s.heal()
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(hungTimeout + bound):
			p.book.wrong("clients whose Calls hung are not answered by a file system that answers again")
		case <-p.end.Done():
		}
		kill()
		<-done
		pause(ctx, between(dice, 0, 2*time.Second))
	}
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
