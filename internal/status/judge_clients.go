package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// slowRead is the mean time in seconds that a Reply waits for its client, and slowPart the part of a
	// Call's time, from which on a client is what its Calls wait for. The kernel takes a Reply at once while
	// the client reads, because socket buffers hold several.
	slowRead = 0.05
	slowPart = 0.5
	// unreadMuch is the memory of unread Replies that counts by itself, when it lies there in both
	// documents, and the client is not read from for unreadPaused of the time or has read less between
	// them than lies there. A client that reads at full speed has some unread at any moment.
	unreadMuch   = 1 << 20
	unreadPaused = 0.5
	// unsentMuch is the least number of bytes that lie in the kernel's send buffer in both documents when a
	// client, or the way to it, takes less than the bridge has for it. What fits into that buffer has left
	// the bridge, so the phases do not show it.
	unsentMuch = 128 << 10
	// goodRate is the rate in bytes a second at which a client is just at the limit of its link, such as
	// an old one of 100 Mbit/s: no trouble, but worth knowing.
	goodRate = 10e6
	// mostNamed bounds the clients that are named, the worst first.
	mostNamed = 3
)

// A slowClient is a client that reads slowly.
type slowClient struct {
	*Client
	wait float64 // mean time of the client phase
	rate float64 // bytes a second to it
	part float64 // share of its Calls' time
}

// clients judges the clients that the documents list.
func (j *judge) clients() {
	if j.before == nil {
		return
	}
	type key struct{ listener, address string }
	before := ByKey(j.before.Clients.List, func(c *Client) key { return key{c.Listener, c.Address} })
	var slow []slowClient
	var lossyHosts []string
	var worst string
	for i := range j.now.Clients.List {
		c := &j.now.Clients.List[i]
		old := before[key{c.Listener, c.Address}]
		if age := j.now.Time.Sub(c.Since).Seconds(); c.Since.After(j.before.Time) && age >= shortSpan {
			old = &Client{Since: c.Since} // it has counted from 0 since then
			if c.TCP != nil {
				old.TCP = &TCP{}
			}
			if c.OldestCall >= shortSpan {
				old.Unread = c.Unread
			}
		}
		if old == nil || !old.Since.Equal(c.Since) || c.Phases.Calls < old.Phases.Calls {
			continue
		}
		if text, bad := lossy(c.TCP, old.TCP); bad {
			if h := hostOf(c.Address); !slices.Contains(lossyHosts, h) {
				lossyHosts = append(lossyHosts, h)
			}
			if worst == "" {
				worst = text
			}
			continue // that it reads slowly follows from it
		}
		if s, bad := j.slow(c, old); bad {
			slow = append(slow, s)
		}
	}
	if len(lossyHosts) > 0 {
		j.add(Warning, CodeWireLossy, lossyHosts[0], fmt.Sprintf("The network to client %s loses segments: %s in the last %s.%s", lossyHosts[0], worst, seconds(j.span), others(lossyHosts)),
			"Look for errors and drops on the way: `ethtool -S`, `ip -s link`, the counters of the switch, and the MTU. `ss -ti` shows each connection.")
	}
	slices.SortStableFunc(slow, func(a, b slowClient) int {
		return cmp.Or(cmp.Compare(b.Unread, a.Unread), cmp.Compare(b.wait, a.wait))
	})
	for i, s := range slow {
		if i == mostNamed {
			j.add(Warning, CodeClientSlow, "", fmt.Sprintf("%s more read their Replies slowly.", count(uint64(len(slow)-i), "client")), "`rdmabridge clients --sort waiting` shows them.")
			break
		}
		j.slowClient(s)
	}
}

// slow reports whether c reads its Replies slowly.
func (j *judge) slow(c, old *Client) (s slowClient, bad bool) {
	p := c.Phases.Sub(&old.Phases)
	span := min(j.span, j.now.Time.Sub(c.Since).Seconds())
	s = slowClient{Client: c, rate: float64(c.BytesOut-min(old.BytesOut, c.BytesOut)) / span}
	if p.Calls > 0 && p.Total() > 0 {
		s.wait, s.part = p.Client/float64(p.Calls), p.Client/p.Total()
	}
	if p.Calls >= enoughCalls && s.wait >= slowRead && s.part >= slowPart {
		return s, true
	}
	if c.TCP != nil && old.TCP != nil && c.TCP.Unsent >= unsentMuch && old.TCP.Unsent >= unsentMuch && s.rate < goodRate {
		return s, true
	}
	unread := min(c.Unread, old.Unread)
	return s, unread >= unreadMuch && (c.Paused-old.Paused >= unreadPaused*span || s.rate*span < float64(unread))
}

func (j *judge) slowClient(s slowClient) {
	text := fmt.Sprintf("Client %s reads its Replies slowly: %s a second", s.Address, size(int64(s.rate)))
	unread := s.Unread
	if s.TCP != nil {
		unread += int64(s.TCP.Unsent)
	}
	if unread > 0 {
		text += fmt.Sprintf(", and %s lie unread", size(unread))
	}
	text += "."
	if s.part >= slowPart {
		text += fmt.Sprintf(" A Reply waits %s for it, %s of the time of its Calls.", duration(s.wait), percent(s.part))
	}
	severity := Warning
	if s.rate >= goodRate {
		severity = Notice
		text += " That is what its link or its processor lets through; other clients are not slower for it."
	} else if s.TCP != nil {
		text += fmt.Sprintf(" The network does not lose its segments (%s for a round trip), so look at that host.", duration(s.TCP.RTT))
	}
	j.add(severity, CodeClientSlow, s.Address, text, "Look at the load of that host and its link; `nfsiostat` and `mountstats` there show what its mounts wait for. `rdmabridge clients --filter "+hostOf(s.Address)+"` shows all its connections.")
}

// others says how many hosts there are besides the first.
func others(hosts []string) string {
	if len(hosts) < 2 {
		return ""
	}
	return fmt.Sprintf(" It is the same with %s.", strings.Join(hosts[1:min(len(hosts), 4)], ", ")+more(len(hosts)-4))
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// hostOf returns the host of an address with a port.
func hostOf(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.Addr().Unmap().String()
	}
	return address
}
