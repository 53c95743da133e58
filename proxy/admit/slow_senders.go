package admit

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// slowPace is how many octets a second a client has to send of its incomplete Calls while
	// other clients wait for memory.
	slowPace = 128 << 10
	// slowLooks is how many looks in a row, half a second apart, must find a client slow.
	slowLooks = 2
	// slowTicks is how many ticks of memory pass between two looks at the clients that send.
	slowTicks = 5
)

var errSlowSender = errors.New("proxy: the client sends a Call too slowly while memory for Calls is short")

// A slowSenders keeps clients that begin Calls and do not finish them from stopping the others. While clients wait for
// memory that others hold, Memory has it look at every client twice a second, on the client's loop. A client is slow if
// it has held memory for an incomplete Call throughout a second, has sent less than slowPace in it, and the bridge was
// willing to read. slowSenders closes slow clients until they have freed what the others wait for: those of the host
// whose slow clients hold the most first, and of these the one that holds the most first.
type slowSenders struct{ shedder }

// weigh finds the slow clients, and closes some: others wait for short octets.
func (s *slowSenders) weigh(round int, short int64) {
	s.clients(func(g *Client, sends func() Sending) int64 {
		if g.Gone() {
			return 0
		}
		now := sends()
		if g.sends == nil && now.Held == 0 {
			return 0
		}
		return g.sender().look.see(round, now)
	}, func(slow []Burden) {
		byHost := make(map[*Host]int64)
		for _, b := range slow {
			byHost[b.Client.host] += b.Held
		}
		slices.SortFunc(slow, func(a, b Burden) int {
			return cmp.Or(cmp.Compare(byHost[b.Client.host], byHost[a.Client.host]), cmp.Compare(b.Held, a.Held))
		})
		for _, b := range slow[:s.shed(slow, short)] {
			b.Client.host.memory.sent.Store(0)
		}
	})
}

// A Sending is what a client sends now, as slowSenders sees it.
type Sending struct {
	Held   int64  // octets of memory that incomplete Calls hold
	Octets int64  // octets of Calls received so far, on the whole connection
	Calls  uint64 // Calls received so far, if a client that sends Calls one after the other is not slow
	Ready  bool   // the bridge waits for octets of the client
}

// A sendingLook is what slowSenders saw of a client when it looked last.
type sendingLook struct {
	Sending
	round int
	slow  int // looks in a row that found the client slow
}

// see reports how many octets of memory the client holds, if it is slow, and otherwise 0.
func (l *sendingLook) see(round int, now Sending) int64 {
	was := *l
	l.Sending, l.round, l.slow = now, round, 0
	if was.round != round-1 || now.Held == 0 || was.Held == 0 || !now.Ready || !was.Ready ||
		now.Calls != was.Calls || now.Octets-was.Octets >= int64(slowPace*slowTicks*memoryTick/time.Second) {
		return 0
	}
	if l.slow = was.slow + 1; l.slow < slowLooks {
		return 0
	}
	return now.Held
}
