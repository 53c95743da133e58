package session

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A Call is what the package notes of one Call.
type Call struct {
	Learns    bool // the table learns from the Reply
	ForeAlone bool // nfs.BindForeOrBoth has changed the Call
}

// Replied has the table learn from reply, the Reply to the Call k of r, whose header, message and Analysis are h, m and
// a. signed is whether the Call is under RPCSEC_GSS. It runs on the loop of the connection that has brought the Reply.
func (r *Client) Replied(k *Call, h *oncrpc.Call, m []byte, a *ulb.Analysis, reply [][]byte, signed bool) {
	t := r.table
	if t == nil {
		return
	}
	if k.Learns && a.Session == 0 {
		var p oncrpc.Reply
		if oncrpc.ParseReply(reply[0], &p) == nil && p.Succeeded() && t.usedHidden(r) {
			r.settled.Store(true)
		}
		return
	}
	if id, ok := nfs.SequenceSession(m, a); ok {
		switch status, ok := nfs.SequenceStatus(reply[0], a); {
		case !ok:
		case status == nfs.StatusOK && k.Learns:
			t.used(id, r)
		case status == nfs.StatusBadSession, status == nfs.StatusDeadSession:
			t.forget(id, r)
		}
	}
	switch {
	case a.SessionOps == 0:
	case k.ForeAlone:
		nfs.ForeAlone(reply[0], a) // which is all of it: nothing is reduced
	default:
		t.repliedOps(r, h, m, a, whole(reply), signed)
	}
}

// repliedOps has t learn from the operations that make, bind and destroy sessions.
func (t *Table) repliedOps(r *Client, h *oncrpc.Call, m []byte, a *ulb.Analysis, reply []byte, signed bool) {
	if a.SessionOps&ulb.CreateSession != 0 {
		if id, back, ok := nfs.CreatedSession(reply, a); ok && back {
			program, _ := nfs.CallbackProgram(m, a)
			t.bind(id, r, program, signed)
		}
	}
	if a.SessionOps&ulb.BindConnToSession != 0 {
		if id, back, ok := nfs.BoundSession(reply, a); ok && back {
			t.bind(id, r, 0, signed)
		}
	}
	if a.SessionOps&ulb.DestroySession != 0 {
		if status, ok := nfs.Status(reply, a); ok && status == nfs.StatusOK {
			if id, ok := nfs.DestroyedSession(h); ok {
				t.forget(id, r)
			}
		}
	}
}
