package iwarp

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// The end of a connection. Every way to it leads through end, which runs once: it makes
// sure that nothing refers to the ULP's memory any more, then flushes posted work.

// close closes the connection for the ULP: orderly when err is nil.
func (q *qp) close(err error) {
	switch q.state {
	case stateIdle, stateError, stateTerminate:
		if q.state == stateIdle {
			q.end(stateError, err)
		}
	case stateClosing:
		if err != nil {
			q.terminate(wire.CodeLocal, nil, err)
		}
	case stateRTS:
		if err != nil {
			q.terminate(wire.CodeLocal, nil, err)
			return
		}
		q.state = stateClosing
		if q.tx.wait && !q.rx.heard {
			// Nothing may be written before the peer's first FPDU.
			q.finish()
		}
	}
}

// finish ends the work of CLOSING: conn sends FIN, and input is dropped.
func (q *qp) finish() {
	q.fin = true
	q.end(stateClosing, nil)
}

// raise ends the connection for an error of the peer.
func (q *qp) raise(f fault) {
	t := wire.Terminate{Code: f.code}
	h := q.rx.head[:]
	if f.head >= headDDP {
		t.SegLen, t.HasLen = uint16(wire.Control(h).ULPDULen()), true
		t.DDP = h[2:wire.UntaggedLen]
		if q.rx.op.Tagged() {
			t.DDP = h[2:wire.TaggedLen]
		}
	}
	if f.head == headRead {
		t.RDMAP = h[wire.UntaggedLen:wire.ReadRequestLen]
	}
	q.terminate(f.code, &t, nil)
}

// raiseRead ends the connection for a Read whose region was invalidated while it was
// answered. The quoted headers describe the part of the Read that is not answered. RFC
// 5040 Section 4.8.
func (q *qp) raiseRead(c wire.Code, in *inbound) {
	rd := in.Read
	rd.SinkTO += uint64(in.done)
	rd.SrcTO += uint64(in.done)
	rd.Size -= in.done
	h := wire.AppendReadRequest(nil, in.msn, rd)
	t := wire.Terminate{
		Code: c, SegLen: wire.ReadRequestULPDU, HasLen: true,
		DDP: h[2:wire.UntaggedLen], RDMAP: h[wire.UntaggedLen:],
	}
	q.terminate(c, &t, nil)
}

// terminate queues a Terminate with the code c as the last FPDU. A nil t quotes no
// headers. The ULP gets err, or a terminateError if err is nil.
func (q *qp) terminate(c wire.Code, t *wire.Terminate, err error) {
	if t == nil {
		t = &wire.Terminate{Code: c}
	}
	payload := t.Append(q.tx.term[:0])
	q.tx.termLen = len(payload)
	if err == nil {
		err = &terminateError{Code: c, Raw: append([]byte(nil), payload...)}
		if stag := q.rx.fault.stag; stag != 0 {
			err = &fabric.AccessError{Handle: fabric.Handle(stag), Err: err}
		}
	}
	q.end(stateTerminate, err)
}

// abort ends the connection because the socket ended.
func (q *qp) abort(err error) {
	q.end(stateError, err)
}

// end moves to state s and flushes all work, once.
func (q *qp) end(s qpState, err error) {
	if q.ended {
		if s == stateError {
			q.state = stateError
			q.drop()
		}
		return
	}
	q.state, q.err, q.ended = s, err, true
	q.rx.dst = nil

	q.sealOutput(s)
	q.flush(err)
	q.stags.clear()
}

// sealOutput removes all references to the ULP's memory from the output. It copies the rest of
// an FPDU that is half written, and drops the other FPDUs. In state ERROR it drops all FPDUs.
func (q *qp) sealOutput(s qpState) {
	if b := q.tx.batch; b != nil {
		if s == stateError {
			q.drop()
		} else if left := b.seal(); left == 0 {
			q.drop()
		} else {
			q.tx.built = q.tx.written + uint64(left)
		}
	}
	if q.tx.batch == nil {
		q.tx.built = q.tx.written
	}
	q.tx.marks.Seek(q.tx.built)
	q.tx.cur, q.tx.kick = txNone, false
	q.tx.one[0] = nil
}

// flush completes all posted work with ErrFlushed, and forgets the peer's Reads.
func (q *qp) flush(err error) {
	flushed := fabric.ErrFlushed
	if err != nil {
		flushed = fmt.Errorf("%w: %w", fabric.ErrFlushed, err)
	}
	q.built = 0
	for q.wq.len() > 0 {
		q.sendDone(flushed)
	}
	for q.reads.len() > 0 {
		q.readDone(flushed)
	}
	for q.recvs.len() > 0 {
		rc := q.recvs.at(0)
		q.cs = append(q.cs, fabric.Completion{ID: rc.id, Op: fabric.OpReceive, Err: flushed})
		*rc = receive{}
		q.recvs.pop()
	}
	for q.irq.len() > 0 {
		*q.irq.at(0) = inbound{}
		q.irq.pop()
	}
}

// drop discards the batch, with the FPDUs that are not written.
func (q *qp) drop() {
	if q.tx.batch != nil {
		q.cfg.pool.put(q.tx.batch)
		q.tx.batch, q.tx.open = nil, false
	}
}
