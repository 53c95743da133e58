package pool

import (
	"context"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// sweep gives back the Calls that have waited too long. The owner closes the connection
// of a client whose Call comes back, and the client retransmits: an upstream that is
// down must not look like a server that never finishes a Call.
func (p *Pool) sweep(ctx context.Context) {
	t := time.NewTicker(p.sweepEvery())
	defer t.Stop()
	aged := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			hang := 0
			p.mu.Lock()
			old := p.queue.expire(now.Add(-p.opts.QueueWait))
			if p.queue.n > p.queue.anySeat {
				p.rebindAll()
			}
			if now.Sub(aged) >= ages.Ageing-ages.Ageing/8 {
				aged = now
				hang = p.grow()
				p.part.Aged(&p.place, p.old())
			}
			waiting := p.queue.n > 0 && !p.part.Holds(&p.place) // for a credit, or beside one by a mistake: then no longer than this
			scarce := p.opts.Scarce
			p.rest()
			p.mu.Unlock()
			if hang > 0 && scarce != nil {
				scarce(hang)
			}
			t.Reset(p.sweepEvery())
			p.expire(old, errQueueTimeout)
			if waiting {
				p.kick(Elsewhere)
			}
		}
	}
}

// sweepEvery is the time between two sweeps.
func (p *Pool) sweepEvery() time.Duration {
	every := min(max(p.options().QueueWait/8, 10*time.Millisecond), ages.Ageing)
	if !p.slowStart.Over() {
		return min(every, slowstart.Age)
	}
	return every
}
