package nfs

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Sessions in Calls and Replies
//
// These functions read what the proxy has to know to bring a server's reverse Calls to the client
// that they are for: which session a client has created, bound to its connection, used or ended.
// None of them allocates, and none keeps its arguments.
//
// They take the Analysis of the Call with its Reply, because only the Call tells whether RPCSEC_GSS
// integrity wraps the results. A Reply alone does not tell: a client chooses the tag, which the
// server returns, and the sequence number of its GSS Calls. So it can obtain a wrapped Reply which,
// read as plain results, says that a SEQUENCE on the session of another client has succeeded.
//
// Under RPCSEC_GSS privacy nothing can be read. Analysis.SessionOps and Analysis.Session are 0
// then.

// A SessionID is sessionid4, which names a session of one server. RFC 8881 Section 2.10.1.
type SessionID [16]byte

// The values of nfsstat4 that say what has become of a session. RFC 8881 Section 15.1.
const (
	StatusOK           = 0
	StatusDelay        = 10008 // NFS4ERR_DELAY: try again later
	StatusBadSession   = 10052 // NFS4ERR_BADSESSION: the server has no such session
	StatusConnNotBound = 10055 // NFS4ERR_CONN_NOT_BOUND_TO_SESSION
	StatusDeadSession  = 10078 // NFS4ERR_DEADSESSION: the server is about to forget the session
)

const (
	connBackChannel = 2 // CREATE_SESSION4_FLAG_CONN_BACK_CHAN, RFC 8881 Section 18.36.1

	// Values of channel_dir_from_server4, RFC 8881 Section 18.34.2.
	dirBack = 2 // CDFS4_BACK
	dirBoth = 3 // CDFS4_BOTH

	// sequenceArgs is the length of SEQUENCE4args: sessionid 16, sequenceid, slotid,
	// highest_slotid, cachethis. RFC 8881 Section 18.46.1.
	sequenceArgs = 32
)

// SequenceSession returns the session of the SEQUENCE at the start of the Call m, whose Analysis is
// a. ok is false when the Call does not begin with SEQUENCE. RFC 8881 Section 18.46.
func SequenceSession(m []byte, a *ulb.Analysis) (id SessionID, ok bool) {
	if a.Session == 0 || uint64(a.Session)+sequenceArgs > uint64(len(m)) {
		return id, false
	}
	return SessionID(m[a.Session:]), true
}

// CreatedSession returns the session that a CREATE_SESSION has made, from the whole plain RPC Reply
// to the Call of the Analysis a. back is whether the server uses the connection of the Call for the
// session's back channel: CREATE_SESSION4_FLAG_CONN_BACK_CHAN in csr_flags. ok is false when no
// session was made, and when the Reply cannot be walked to its end. RFC 8881 Section 18.36.
//
//	CREATE_SESSION4resok: sessionid 16, sequence, flags, fore channel, back channel
//	channel_attrs4: headerpadsize, maxrequestsize, maxresponsesize, maxresponsesize_cached,
//	                maxoperations, maxrequests, rdma_ird<1>
func CreatedSession(reply []byte, a *ulb.Analysis) (id SessionID, back, ok bool) {
	_, at, ok := walkReply4(reply, a, opCreateSession)
	if !ok || at == 0 {
		return id, false, false
	}
	return SessionID(reply[at:]), be(reply, at+20)&connBackChannel != 0, true
}

// BoundSession returns the session that a BIND_CONN_TO_SESSION has bound to the connection of its
// Call, from the whole plain RPC Reply to the Call of the Analysis a. back is whether the server
// uses that connection for the session's back channel, alone or with the fore channel. ok is false
// when nothing was bound, and when the Reply cannot be walked to its end. RFC 8881 Section 18.34.
//
//	BIND_CONN_TO_SESSION4resok: sessionid 16, dir, use_conn_in_rdma_mode
func BoundSession(reply []byte, a *ulb.Analysis) (id SessionID, back, ok bool) {
	_, at, ok := walkReply4(reply, a, opBindConnToSession)
	if !ok || at == 0 {
		return id, false, false
	}
	dir := be(reply, at+16)
	return SessionID(reply[at:]), dir == dirBack || dir == dirBoth, true
}

// DestroyedSession returns the session that the DESTROY_SESSION in the Call c ends. The server has
// ended it when [Status] of the Reply is StatusOK. Of several the last is returned; clients send
// one. ok is false when there is none, and when the arguments cannot be walked to their end. RFC
// 8881 Section 18.37.
func DestroyedSession(c *oncrpc.Call) (id SessionID, ok bool) {
	if _, ok := MinorVersion(c); !ok {
		return id, false
	}
	start, end, _ := c.Arguments()
	m := c.Message[:end]
	w := ulb.Walk{Cursor: xdr.NewCursor(m, start)}
	w.Opaque()
	minor := w.Uint32()
	count := w.Uint32()
	at := 0
	for ; count > 0 && w.OK(); count-- {
		number := w.Uint32()
		o := op(minor, number)
		if o == nil || count > maxOps {
			return id, false
		}
		if number == opDestroySession {
			at = w.Pos()
		}
		o.args.Walk(&w)
	}
	if !w.OK() || w.Len() != 0 || at == 0 {
		return id, false
	}
	return SessionID(m[at:]), true
}

// Status returns the nfsstat4 of a COMPOUND, from the whole plain RPC Reply to the Call of the
// Analysis a. It is StatusOK when all operations succeeded. ok is false when the Reply has no
// results, and when they cannot be walked to their end. RFC 8881 Section 16.2.
func Status(reply []byte, a *ulb.Analysis) (status uint32, ok bool) {
	status, _, ok = walkReply4(reply, a, opIllegal)
	return status, ok
}

// SequenceStatus returns the status of a SEQUENCE, from the plain RPC Reply to the Call of the
// Analysis a. ok is false when the first result is not that of a SEQUENCE. It reads no further than
// that status, so the rest of the Reply may be missing: the first part of a Reply in several parts
// will do. RFC 8881 Section 18.46.
func SequenceStatus(reply []byte, a *ulb.Analysis) (status uint32, ok bool) {
	if a.Session == 0 {
		return 0, false
	}
	var r oncrpc.Reply
	if oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded() {
		return 0, false
	}
	c := xdr.NewCursor(reply, r.Results)
	if !a.Reduce {
		c.Skip(4 + 4) // length of the databody, seq_num
	}
	c.Skip(4)
	c.Opaque()
	count, number, status := c.Uint32(), c.Uint32(), c.Uint32()
	if !c.OK() || count == 0 || number != opSequence {
		return 0, false
	}
	return status, true
}

// walkReply4 walks the plain RPC Reply to the COMPOUND of the Analysis a to its end. It returns
// the status of the COMPOUND, and the position of the results of the last operation of the given
// number, or 0 when no such operation succeeded. ok is false when the Reply has no results, or
// others than those of a COMPOUND.
func walkReply4(reply []byte, a *ulb.Analysis, number uint32) (status uint32, at int, ok bool) {
	var r oncrpc.Reply
	if oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded() {
		return 0, 0, false
	}
	m, results := reply, r.Results
	if !a.Reduce {
		// databody<>: seq_num, results; checksum<>. RFC 2203 Section 5.3.2.2.
		c := xdr.NewCursor(reply, results)
		pos, n := c.Opaque()
		c.Opaque()
		if !c.OK() || c.Len() != 0 || n < 4 {
			return 0, 0, false
		}
		m, results = reply[:pos+n], pos+4
	}
	w := walkResults(m, results, false)
	status = w.Uint32()
	w.Opaque()
	for count := w.Uint32(); count > 0 && w.OK(); count-- {
		pos := w.Pos()
		if n, failed := walkResult4(&w); n == number && failed == 0 {
			at = pos + 8
		}
	}
	if !w.OK() || w.Len() != 0 {
		return 0, 0, false
	}
	return status, at, true
}
