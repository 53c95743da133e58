package admit

import (
	"cmp"
	"errors"
	"slices"
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
		if g.waiter.Gone() {
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
