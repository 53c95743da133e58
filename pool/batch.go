package pool

import "time"

// A Batch collects the Calls that one pass of a loop submits to pools and the credits that it gives
// back. Flush hands all of them over at the end of the pass. The Calls of a client come many at a
// time, and so do the Replies of a connection. So a loop takes the lock of a pool, and fetches the
// memory that the lock guards from another processor, once in a pass and not once for each Call.
//
// Until Flush, the pool does not know the Calls, and still counts the credits as in use. Methods of
// Pool and Seat do not see the batch: of these, Forget has a counterpart here.
//
// A Batch belongs to its loop, which makes it with NewBatch.
type Batch struct {
	here     int                // affinity of the loop; constant, as the next two
	arrange  func()             // has the loop call Flush at the end of its pass
	warm     func(*Entry) uint8 // reads the memory of a Call that Dispatch reads
	parts    []batchPart        // what each pool has in the batch
	latest   *batchPart         // the part that was used last; it has no pool if Flush has emptied it
	flushing bool               // Flush is running, and hands over what is added meanwhile
	cold     bool               // the argument of Flush
	out      []outgoing         // what Flush dispatches next
	warmth   uint8              // what warm has returned, so that its reads are not left out
}

// A batchPart holds the Calls and credits that a batch has for one pool.
type batchPart struct {
	pool    *Pool
	calls   fifo       // to be submitted
	credits []returned // to be given back
}

// A returned is n credits that Calls of one host have yielded and that are alike. The Calls may have others already.
type returned struct {
	credit
	host *Host // nil if the Calls have no Flow
	n    int
}

// An outgoing is the list of Calls that begins with e. They have credits of m, and are dispatched once the lock is
// released.
type outgoing struct {
	m Member
	e *Entry
}

// mostAtOnce is after how many Calls, and after how many credits, the lock of the pool is released for others.
const mostAtOnce = 64

// NewBatch returns the batch of the loop with the affinity here. When the batch gets its first Call
// or credit after a Flush, it calls arrange.
//
// A Call that has waited may be in no cache any more. So before a cold Flush dispatches several Calls it calls warm for
// each, which reads one octet of each cache line that Dispatch will need, and returns a value that depends on all
// of them. The processor fetches the lines of many Calls at the same time then. warm may be nil.
func NewBatch(here int, arrange func(), warm func(*Entry) uint8) *Batch {
	return &Batch{here: here, arrange: arrange, warm: warm, latest: new(batchPart)}
}

// part returns the part of p, and adds one if there is none.
func (b *Batch) part(p *Pool) *batchPart {
	if b.latest.pool != p {
		b.latest = b.find(p)
	}
	return b.latest
}

// find does what part does, for another pool than that of the Call or credit before.
func (b *Batch) find(p *Pool) *batchPart {
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

// Submit adds e, which Flush submits to p. If p does not take e, Flush hands it to Owner.Expired.
func (b *Batch) Submit(p *Pool, e *Entry) { b.part(p).calls.push(e) }

// Done adds the credit of e, which Flush gives back. The caller may use e again at once.
func (b *Batch) Done(e *Entry) {
	part, h := b.part(e.credit.seat.pool), e.host()
	if n := len(part.credits); n > 0 {
		if last := &part.credits[n-1]; last.credit == e.credit && last.host == h {
			last.n++
			e.credit = credit{}
			return
		}
	}
	part.credits = append(part.credits, returned{host: h, n: 1})
	e.yield(e.credit.seat, &part.credits[len(part.credits)-1].credit)
}

// Forget does what p.Forget does, and also removes the Calls of f from the batch and hands them to
// Owner.Expired with err.
func (b *Batch) Forget(p *Pool, f *Flow, err error) {
	for i := range b.parts {
		if b.parts[i].pool == p {
			p.refuse(b.parts[i].calls.forget(f), err)
		}
	}
	p.Forget(f, err)
}

// Flush hands all Calls and credits over to their pools, and dispatches the Calls that may go then.
// It also hands over the Calls and credits that dispatching adds. cold says that the Calls may have left the caches.
func (b *Batch) Flush(cold bool) {
	b.flushing, b.cold = true, cold
	for n := len(b.parts); n > 0; n = len(b.parts) { // dispatching may collect more
		b.settle(&b.parts[n-1])
	}
	b.flushing = false
}

// settle removes part, which is the last one, and hands its Calls and credits over.
func (b *Batch) settle(part *batchPart) {
	p, calls, credits := part.pool, part.calls, part.credits
	var after aftermath
	now := time.Now() // once, and not under the lock
	for len(credits) > 0 || calls.head != nil {
		n := 0
		for k := 0; k < mostAtOnce && n < len(credits); n++ {
			k += credits[n].n
		}
		b.handOver(p, credits[:n], &calls, now, &after)
		credits = credits[n:]
	}
	clear(part.credits)
	part.pool, part.calls, part.credits = nil, fifo{}, part.credits[:0]
	b.parts = b.parts[:len(b.parts)-1]

	// From here on b may be used again: dispatching a Call, or refusing one, may add others.
	p.metrics.queued.Add(after.queued)
	if b.cold && b.warm != nil {
		for i := range b.out {
			for e := b.out[i].e; e != nil; e = e.next {
				b.warmth += b.warm(e)
			}
		}
	}
	for i := range b.out {
		b.out[i].m.Dispatch(b.out[i].e, b.here)
	}
	clear(b.out)
	b.out = b.out[:0]
	p.refuse(after.refused.head, after.reason)
	p.metrics.shareWaits.Add(after.kept)
	if after.waits {
		p.kick(b.here)
	} else {
		p.part.Wake(b.here)
	}
	if after.wake {
		p.slowStart.Wake(b.here) // the Calls above may have left the room to others
	}
}

// An aftermath tells settle what remains to be done without the pool's lock.
type aftermath struct {
	queued  int64  // how many more Calls wait than before
	kept    uint64 // of these, Calls that wait because of the share of their host
	waits   bool   // Calls wait, and more may go than credits came back
	wake    bool   // the slow start counts fewer Calls
	refused fifo   // Calls that the pool did not take
	reason  error  // why it did not take the last of them
}

// handOver gives the credits back, lets queued Calls take them, and submits the first of calls. It
// adds the Calls to dispatch to b.out.
func (b *Batch) handOver(p *Pool, credits []returned, calls *fifo, now time.Time, after *aftermath) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range credits {
		c := &credits[i]
		p.giveBack(&c.credit, c.host, c.n)
		p.slowStart.Undispatch(c.slowStart, c.n)
		after.wake = after.wake || c.slowStart != 0
	}
	for i := range credits {
		s := credits[i].seat
		for left := credits[i].n; left > 0; {
			m, e, n := p.next(s, now, left)
			if e == nil {
				break
			}
			left -= 1 + n
			after.queued -= int64(1 + n)
			b.out = append(b.out, outgoing{m, e})
		}
	}
	for n := 0; n < mostAtOnce && calls.head != nil; n++ {
		e := calls.pop()
		switch m, behind, keeps, err := p.submit(e, calls.head, b.here, now); {
		case err != nil:
			after.refused.push(e)
			after.reason = err
		case m != nil:
			e.next = calls.take(behind)
			b.out = append(b.out, outgoing{m, e})
			n += behind
		default:
			queued := 1
			for p.asleep == 0 && calls.head != nil && calls.head.Flow == e.Flow && p.queue.n < p.opts.QueueLimit {
				p.wait(calls.pop(), b.here, now) // behind e, as if it was submitted by itself
				queued++
			}
			n += queued - 1
			after.queued += int64(queued)
			if keeps {
				after.kept += uint64(queued)
			}
		}
	}
	after.waits = p.queue.n > 0
}

// refuse gives the owner the list of entries that begins with e. The pool has not queued them.
func (p *Pool) refuse(e *Entry, err error) {
	for e != nil {
		next := e.next
		e.next = nil
		p.owner.Expired(e, err)
		e = next
	}
}
