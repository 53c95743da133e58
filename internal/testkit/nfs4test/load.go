package nfs4test

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An Op is what a COMPOUND does behind its SEQUENCE. A value above 0 is a READ of so many octets.
type Op int32

// The other values of Op.
const (
	OpSequence Op = 0  // nothing
	OpGetattr  Op = -1 // PUTROOTFH, GETATTR
	opReclaim  Op = -2 // RECLAIM_COMPLETE
)

func (o Op) String() string {
	switch o {
	case OpSequence:
		return "SEQUENCE"
	case OpGetattr:
		return "GETATTR"
	case opReclaim:
		return "RECLAIM_COMPLETE"
	}
	return fmt.Sprintf("READ of %d octets", int32(o))
}

// A Load keeps COMPOUNDs under way in the slots of some clients.
type Load struct {
	Replies atomic.Int64

	cs    *Clients
	op    Op
	depth int // slots in use of each client
	which []int
	stop  atomic.Bool
	left  sync.WaitGroup // clients
}

// Load starts a load of clients which, depth COMPOUNDs at a time. A client has one load at a time.
func (cs *Clients) Load(which []int, depth int, op Op) *Load {
	l := &Load{cs: cs, op: op, depth: depth, which: which}
	for _, i := range which {
		c := cs.all[i]
		l.left.Add(1)
		c.post(func() {
			c.load = l
			c.step()
		})
	}
	return l
}

// Stop begins no more COMPOUNDs and waits until all have been answered.
func (l *Load) Stop() {
	l.stop.Store(true)
	for _, i := range l.which {
		c := l.cs.all[i]
		c.post(c.leave)
	}
	l.left.Wait()
}

// leave ends c's part in a load that is stopped, when all its COMPOUNDs have been answered.
func (c *Client) leave() {
	l := c.load
	if l == nil || !l.stop.Load() {
		return
	}
	for i := range c.slots {
		if c.slots[i].busy && c.slots[i].load == l {
			return
		}
	}
	c.load = nil
	l.left.Done()
}

// pump starts the COMPOUNDs that are due. The session can be used.
func (c *Client) pump() {
	for i := range c.slots {
		switch p := &c.slots[i]; {
		case p.busy && p.fresh:
			c.begin(uint32(i), p, p.op, p.load)
		case p.busy && p.again:
			p.again = false
			c.build(uint32(i), p)
		}
	}
	if !c.reclaimed {
		if !c.slots[0].busy {
			c.begin(0, &c.slots[0], opReclaim, nil)
		}
		return
	}
	if c.renewal {
		for i := range c.slots {
			if p := &c.slots[i]; !p.busy {
				c.renewal = false
				c.begin(uint32(i), p, OpSequence, nil)
				break
			}
		}
	}
	l := c.load
	if l == nil || l.stop.Load() {
		return
	}
	for i := range min(l.depth, len(c.slots)) {
		if p := &c.slots[i]; !p.busy && !p.rests {
			c.begin(uint32(i), p, l.op, l)
		}
	}
}

// begin sends a COMPOUND in slot n, with the next sequence number.
func (c *Client) begin(n uint32, p *clientSlot, op Op, l *Load) {
	if l != nil {
		c.idle = false
	}
	p.sequence++
	p.busy, p.again, p.fresh, p.waiting, p.op, p.load = true, false, false, false, op, l
	p.offset = uint64(c.index)<<16 + uint64(p.sequence)
	c.build(n, p)
}

// build makes the COMPOUND in slot n and sends it.
func (c *Client) build(n uint32, p *clientSlot) {
	p.xid = c.nextXID(n)
	ops := uint32(1)
	switch {
	case p.op == opReclaim:
		ops = 2
	case p.op != OpSequence:
		ops = 3
	}
	m := append(p.record[:0], 0, 0, 0, 0)
	m = append(m, compoundCall(p.xid, c.cs.o.Minor, ops)...)
	m = append(testkit.AppendWords(m, opSequence), c.session[:]...)
	m = testkit.AppendWords(m, p.sequence, n, uint32(len(c.slots)-1), 0)
	switch {
	case p.op == opReclaim:
		m = testkit.AppendWords(m, opReclaimComplete, 0)
	case p.op == OpGetattr:
		m = testkit.AppendWords(m, opPutrootfh, opGetattr, 1, 1<<20)
	case p.op > 0:
		m = append(testkit.AppendWords(m, opPutrootfh, opRead), make([]byte, 16)...)
		m = binary.BigEndian.AppendUint64(m, p.offset)
		m = testkit.AppendWords(m, uint32(p.op))
	}
	binary.BigEndian.PutUint32(m, 1<<31|uint32(len(m)-4))
	p.record = m
	c.send(m)
}
