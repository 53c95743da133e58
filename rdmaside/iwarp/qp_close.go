package iwarp

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// The end of a connection. Whatever the way, end runs once: it makes sure that
// nothing refers to the ULP's memory any more, then flushes what was posted.

// close is the ULP's wish: orderly when err is nil.
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
			// The first FPDU would have been the peer's: nothing can be written.
			q.finish()
		}
	}
}

// finish is the end of CLOSING's work: FIN goes out, and what still comes is
// dropped.
func (q *qp) finish() {
	q.fin = true
	q.end(stateClosing, nil)
}

// raise ends the connection for what the peer did.
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

// raiseRead refuses a Read whose region went away while it was answered. The
// headers it quotes say what was left to do. RFC 5040 Section 4.8.
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

// terminate queues a Terminate as the last FPDU. err is handed to the ULP; nil is
// the code.
func (q *qp) terminate(c wire.Code, t *wire.Terminate, err error) {
	if t == nil {
		t = &wire.Terminate{Code: c}
	}
	payload := t.Append(q.tx.term[:0])
	q.tx.termLen = len(payload)
	if err == nil {
		err = &TerminateError{Code: c, Raw: append([]byte(nil), payload...)}
	}
	q.end(stateTerminate, err)
}

// abort ends the connection because the socket did.
func (q *qp) abort(err error) {
	q.end(stateError, err)
}

// end moves to state s and flushes everything, once.
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

	// No octet of the ULP's is referred to after this: an FPDU half written is
	// finished from a copy, whole ones are taken back.
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
	q.stags.clear()
}

// drop gives up what is not written.
func (q *qp) drop() {
	if q.tx.batch != nil {
		q.cfg.pool.put(q.tx.batch)
		q.tx.batch = nil
	}
}
