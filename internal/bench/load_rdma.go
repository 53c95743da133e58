package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaClient is one connection of a load over RDMA.
type rdmaClient struct {
	w     *worker
	index int
	r     *rdmaside.Requester // set before the worker begins
	seq   sequence
	table []rdmaSlot
	spare []uint16

	waiting []uint16 // slots of Calls that wait for a credit
	asked   bool     // waiting for memory
	closing bool
}

// An rdmaSlot is one outstanding Call of a connection.
type rdmaSlot struct {
	c      *rdmaClient
	index  uint16
	op     uint8
	tag    uint32
	shift  uint32
	start  int64
	call   rdmaside.Call
	leases []*regmem.Lease // a whole Call of each kind
}

// dialRDMA makes connection i of a run.
func dialRDMA(ctx context.Context, w *worker, i int) error {
	c := &rdmaClient{w: w, index: i, seq: w.sequence(i), table: make([]rdmaSlot, w.Depth)}
	for n := range c.table {
		s := &c.table[n]
		s.c, s.index, s.shift = c, uint16(n), w.shift(i, n)
		s.call.Owner = s
		c.spare = append(c.spare, uint16(n))
		for _, o := range w.ops {
			l, err := w.loader.calls.Lease(o.callLen())
			if err != nil {
				c.release()
				return fmt.Errorf("memory for %d calls: %w", w.Conns*w.Depth, err)
			}
			copy(l.Bytes(), o.head)
			copy(l.Bytes()[len(o.head):], dataOf(pattern(), s.shift, o.size))
			s.leases = append(s.leases, l)
		}
	}
	w.alive.Add(1)
	r, err := rdmaside.DialRequester(ctx, w.Provider, w.loop, w.Target, rdmaside.RequesterOptions{
		Memory: w.loader.replies, Registry: w.loader.registry, Credits: max(w.Depth, 2),
		CallInline: inlineThreshold, ReplyInline: inlineThreshold,
		Deadline: w.Timeout, RemoteInvalidation: true, Log: w.loader.log,
	}, c)
	if err != nil {
		w.alive.Done()
		c.release()
		return err
	}
	joined := make(chan struct{})
	w.post(func() {
		defer close(joined)
		c.r = r
		w.clients = append(w.clients, c)
		if w.ended {
			c.close()
		}
	})
	<-joined
	return nil
}

// release returns the memory of the Calls.
func (c *rdmaClient) release() {
	for n := range c.table {
		for _, l := range c.table[n].leases {
			l.Release()
		}
		c.table[n].leases = nil
	}
}

func (c *rdmaClient) slots() int { return len(c.spare) }

func (c *rdmaClient) call(start int64) {
	n := c.spare[len(c.spare)-1]
	c.spare = c.spare[:len(c.spare)-1]
	s := &c.table[n]
	s.op, s.start = c.seq.op(c.w.run), start
	xid, tag := c.seq.next(int(n), s.shift)
	s.tag = tag
	m := s.leases[s.op].Bytes()
	c.w.ops[s.op].patch(m, xid, tag)
	s.call.XID, s.call.Message = xid, m
	c.w.inFlight++
	c.waiting = append(c.waiting, n)
	c.send()
}

// send sends the waiting Calls as far as there are credits.
func (c *rdmaClient) send() {
	k := 0
	for ; k < len(c.waiting) && !c.closing; k++ {
		s := &c.table[c.waiting[k]]
		a, b, err := c.w.analyse(s.op, s.call.Message)
		if err == nil {
			s.call.Analysis, s.call.Binding = *a, b
			err = c.r.Send(&s.call)
		}
		if errors.Is(err, rdmaside.ErrNoMemory) && !c.asked {
			c.asked = true
			c.r.Wait(&s.call, func() { c.w.post(func() { c.asked = false; c.send() }) })
		}
		if errors.Is(err, rdmaside.ErrNoCredit) || errors.Is(err, rdmaside.ErrNoMemory) {
			break
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
	c.waiting = append(c.waiting[:0], c.waiting[k:]...)
}

// An analysed op has the Analysis that all its Calls share.
type analysed struct {
	ulb.Analysis
	binding ulb.Binding
	done    bool
}

// analyse returns the Analysis of Calls of kind k. It analyses only the first one, m.
func (w *worker) analyse(k uint8, m []byte) (*ulb.Analysis, ulb.Binding, error) {
	if w.analysed == nil {
		w.analysed = make([]analysed, len(w.ops))
	}
	a := &w.analysed[k]
	if !a.done {
		var c oncrpc.Call
		if err := oncrpc.ParseCall(m, &c); err != nil {
			return nil, nil, err
		}
		a.binding = w.loader.registry.Analyse(&c, &a.Analysis)
		a.done = true
	}
	return &a.Analysis, a.binding, nil
}

// CallDone is part of rdmaside.CallOwner.
func (s *rdmaSlot) CallDone(call *rdmaside.Call, callErr *rdmaside.CallError) {
	c := s.c
	if callErr != nil {
		c.fail(callErr)
		return
	}
	w := c.w
	o := w.ops[s.op]
	parts := call.Reply.Parts()
	err := o.check(parts, s.tag, w.Full, w.scratch[:])
	if err == nil && (len(parts[0]) < 4 || binary.BigEndian.Uint32(parts[0]) != call.XID) {
		err = errors.New("reply with another xid than its call")
	}
	call.Reply.Release()
	if err != nil {
		c.fail(fmt.Errorf("%s: %w", o.name, err))
		return
	}
	c.spare = append(c.spare, s.index)
	w.answered(c, o, s.start, w.now())
	c.send()
}

// Granted is part of rdmaside.Watcher.
func (c *rdmaClient) Granted(_ *rdmaside.Requester, grant int) {
	if grant > 0 && c.r != nil {
		c.send()
	}
}

// Ended is part of rdmaside.Watcher.
func (c *rdmaClient) Ended(_ *rdmaside.Requester, err error) {
	if !c.closing {
		if err == nil {
			err = errors.New("closed by the peer")
		}
		c.fail(err)
	}
	c.release()
	c.w.alive.Done()
}

func (c *rdmaClient) fail(err error) {
	if !c.closing {
		c.w.fail(fmt.Errorf("connection %d: %w", c.index, err))
		c.close()
	}
}

func (c *rdmaClient) close() {
	c.closing = true
	if c.r != nil {
		c.r.Close(nil)
	}
}
