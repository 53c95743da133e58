package pool

import "time"

// A Batch collects what one pass of a loop does to pools, because the Calls of a client come many
// at a time, and so do the Replies of a connection. Flush, at the end of the pass, hands all of it
// over. So the lock of a pool, and the memory that it guards, goes from one loop to another once
// for a pass and not once for a Call.
//
// A Batch belongs to its loop, which makes it with NewBatch.
type Batch struct {
	here     int         // affinity of the loop; constant
	arrange  func()      // has the loop call Flush at the end of its pass; constant
	parts    []batchPart // what each pool has in the batch
	flushing bool
	out      []outgoing // Calls that Flush dispatches next
}

// A batchPart is what a batch has for one pool.
type batchPart struct {
	pool    *Pool
	calls   fifo       // to be submitted
	credits []returned // to be given back
}

// A returned credit is one that a Call of host has yielded.
type returned struct {
	credit
	host *Host
}

// An outgoing Call has got a credit of m.
type outgoing struct {
	m      Member
	e      *Entry
	waited bool // it was queued
}

// mostAtOnce is how many Calls and credits are handed over before the lock is released for others.
const mostAtOnce = 64

// NewBatch returns the batch of the loop with the affinity here. The batch calls arrange when
// there is something for Flush to do, at most once before each Flush.
func NewBatch(here int, arrange func()) *Batch { return &Batch{here: here, arrange: arrange} }

// part returns the part of p.
func (b *Batch) part(p *Pool) *batchPart {
	for i := range b.parts {
		if b.parts[i].pool == p {
			return &b.parts[i]
		}
	}
	n := len(b.parts)
	if n == 0 && !b.flushing {
		b.arrange()
	}
	if n < cap(b.parts) {
		b.parts = b.parts[:n+1] // with the memory of its credits
	} else {
		b.parts = append(b.parts, batchPart{})
	}
	b.parts[n].pool = p
	return &b.parts[n]
}

// Submit has Flush do what p.Submit does. If that fails, e is handed to Owner.Expired.
func (b *Batch) Submit(p *Pool, e *Entry) { b.part(p).calls.push(e) }

// Done has Flush do what s.Done does. The caller may use e again at once.
func (b *Batch) Done(s *Seat, e *Entry) {
	part := b.part(s.pool)
	part.credits = append(part.credits, returned{host: e.host()})
	e.yield(s, &part.credits[len(part.credits)-1].credit)
}

// Forget does what p.Forget does, and also removes the Calls of f from the batch.
func (b *Batch) Forget(p *Pool, f *Flow, err error) {
	for i := range b.parts {
		if b.parts[i].pool == p {
			p.refuse(b.parts[i].calls.forget(f), err)
		}
	}
	p.Forget(f, err)
}

// Flush hands over what was collected. It dispatches Calls that may go now.
func (b *Batch) Flush() {
	b.flushing = true
	for n := len(b.parts); n > 0; n = len(b.parts) { // dispatching may collect more
		b.settle(&b.parts[n-1])
	}
	b.flushing = false
}

// settle hands part over, which is the last one, and removes it.
func (b *Batch) settle(part *batchPart) {
	p, calls, credits := part.pool, part.calls, part.credits
	var after aftermath
	for len(credits) > 0 || calls.head != nil {
		n := min(len(credits), mostAtOnce)
		b.handOver(p, credits[:n], &calls, &after)
		credits = credits[n:]
	}
	clear(part.credits)
	part.pool, part.calls, part.credits = nil, fifo{}, part.credits[:0]
	b.parts = b.parts[:len(b.parts)-1]

	p.metrics.queued.Add(after.queued)
	now := time.Now()
	for i := range b.out {
		o := &b.out[i]
		if o.waited {
			p.metrics.waited(now.Sub(o.e.queuedAt), b.here)
		}
		o.m.Dispatch(o.e, b.here)
	}
	clear(b.out)
	b.out = b.out[:0]
	for _, idle := range after.idle {
		idle.close()
	}
	p.refuse(after.refused.head, after.reason)
	p.metrics.shareWaits.Add(after.kept)
	if after.kept > 0 || after.more {
		p.kick(b.here)
	}
	p.part.wake(b.here)
	if after.wake {
		p.slowStart.wake(b.here) // if the Calls above did not use the room, others may
	}
}

// An aftermath is what handOver leaves to be done without the pool's lock.
type aftermath struct {
	queued  int64  // Calls that wait now and did not before, less the others
	kept    uint64 // Calls that wait although a credit is free
	more    bool   // another Call may go
	wake    bool   // the slow start counts fewer Calls
	idle    []idleConn
	refused fifo // Calls that p did not take
	reason  error
}

// handOver gives back the credits, takes Calls that wait for them, and submits Calls from calls.
// The Calls to dispatch are in b.out then.
func (b *Batch) handOver(p *Pool, credits []returned, calls *fifo, after *aftermath) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range credits {
		c := &credits[i]
		p.giveBack(&c.credit, c.host)
		p.slowStart.undispatch(c.slowStart)
		after.wake = after.wake || c.slowStart != 0
	}
	for i := range credits {
		s := credits[i].seat
		if idle := s.takeIdle(); idle.m != nil {
			after.idle = append(after.idle, idle)
		}
		if m, e := p.next(s); e != nil {
			b.out = append(b.out, outgoing{m, e, true})
			after.queued--
		}
	}
	after.more = len(credits) > 0 && p.shares() && p.more()
	now := time.Now()
	for n := 0; n < mostAtOnce && calls.head != nil; n++ {
		e := calls.pop()
		switch m, keeps, err := p.submit(e, b.here, now); {
		case err != nil:
			after.refused.push(e)
			after.reason = err
		case m != nil:
			b.out = append(b.out, outgoing{m, e, false})
		default:
			after.queued++
			if keeps {
				after.kept++
			}
		}
	}
}

// refuse gives the owner the list of entries that begins with e and that were not queued.
func (p *Pool) refuse(e *Entry, err error) {
	for e != nil {
		next := e.next
		e.next = nil
		p.owner.Expired(e, err)
		e = next
	}
}
