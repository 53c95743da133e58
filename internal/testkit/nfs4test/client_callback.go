package nfs4test

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// called answers a Call of the server as Linux does.
func (c *Client) called(m []byte) {
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		c.fail("callback: %w", err)
		return
	}
	if c.silent {
		return
	}
	b := oncrpc.AppendAccepted(nil, h.XID, oncrpc.Success)
	switch {
	case h.Program != callbackProgram:
		b = oncrpc.AppendAccepted(nil, h.XID, oncrpc.ProgramUnavailable)
	case h.Procedure == 1:
		b = append(b, c.compound(m, h.Args)...)
	}
	c.send(testkit.Record(b))
}

// compound executes a CB_COMPOUND of CB_SEQUENCE and CB_RECALL.
func (c *Client) compound(m []byte, args int) []byte {
	x := xdr.NewCursor(m, args)
	at, n := x.Opaque()
	minor := x.Uint32()
	x.Skip(4) // callback_ident
	count := x.Uint32()
	first := x.Uint32()
	var id SessionID
	binary.BigEndian.PutUint64(id[:], x.Uint64())
	binary.BigEndian.PutUint64(id[8:], x.Uint64())
	sequence, slot := x.Uint32(), x.Uint32()
	x.Skip(8)
	x.Skip(4) // no referring Calls
	second := x.Uint32()
	state := x.Pos()
	x.Skip(16 + 4)
	x.Opaque()
	if !x.OK() || x.Len() != 0 || minor == 0 || count != 2 || first != cbSequence || second != cbRecall {
		c.fail("malformed CB_COMPOUND %x", m)
	}
	status := c.sequenced(id, sequence, slot)
	b := testkit.AppendOpaque(testkit.Words(uint32(status)), m[at:at+n])
	if status != OK {
		return testkit.AppendWords(b, 1, cbSequence, uint32(status))
	}
	c.callback = sequence
	c.cs.recall(tokenOf(m[state:state+16]), c.index)
	b = append(testkit.AppendWords(b, 2, cbSequence, uint32(OK)), id[:]...)
	b = testkit.AppendWords(b, sequence, slot, 0, 0)
	return testkit.AppendWords(b, cbRecall, uint32(OK))
}

// sequenced checks a CB_SEQUENCE.
func (c *Client) sequenced(id SessionID, sequence, slot uint32) Status {
	switch {
	case !c.has || id != c.session:
		// The server may call before the client has the Reply to CREATE_SESSION, and after the
		// client has given the session up.
		if c.has && !c.control.busy {
			c.cs.Strange.Add(1)
		}
		return errBadSession
	case slot != 0:
		return errBadSlot
	case c.bind || c.reset:
		return errDelay // the session is being drained
	case sequence == c.callback:
		return errRetryUncached
	case sequence != c.callback+1:
		return errSeqMisordered
	}
	return OK
}
