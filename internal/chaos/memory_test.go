package chaos

import (
	"math/rand/v2"
	"sync"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// An inMemory is a provider in memory that loses and breaks connections as its sky says.
// A break shows at both ends at once, and its handles can be counted.
type inMemory struct {
	*fabrictest.Loopback
	sky   *sky
	exact bool // a Responder's messages arrive, or the connection ends

	mu     sync.Mutex // guards the rest; a leaf
	dice   *rand.Rand
	dialed map[fabric.Conn]struct{}
}

func newInMemory(s seed, sk *sky, async bool) *inMemory {
	p := &inMemory{Loopback: fabrictest.NewLoopback(), sky: sk, dice: s.dice("in memory", 0), dialed: make(map[fabric.Conn]struct{})}
	p.AsyncInvalidate(async)
	p.Inject(p.decide)
	return p
}

// decide is the hook.
func (p *inMemory) decide(op fabrictest.Operation) fabrictest.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op.Dialed {
		p.dialed[op.Conn] = struct{}{}
	}
	switch {
	case op.Op == fabric.OpSend && (op.Dialed || !p.exact) && p.sky.strikes(p.dice, lostSend):
		return fabrictest.Drop
	case p.sky.strikes(p.dice, failedWork):
		return fabrictest.Fail
	case p.sky.strikes(p.dice, cutWrite):
		return fabrictest.Cut
	}
	return fabrictest.Pass
}

// handles is how many are live on the bridge's side.
func (p *inMemory) handles() (n int) {
	p.mu.Lock()
	conns := make([]fabric.Conn, 0, len(p.dialed))
	for c := range p.dialed {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		n += p.Counts(c).Handles
	}
	return n
}

// memoryFaults are those of a Responder in memory.
var memoryFaults = func() weather {
	w := responderFaults
	for f := resetWire; f <= shutWire; f++ {
		w[f] = 0
	}
	w[lostSend], w[failedWork], w[cutWrite] = 3000, 3000, 10000
	return w
}()

// wireFaults are those of a wire alone.
var wireFaults = func() (w weather) {
	for f := resetWire; f < shutWire; f++ {
		w[f] = responderFaults[f]
	}
	return w
}()
