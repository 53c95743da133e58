package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The echo program. It has no binding, so its Calls have the shapes that suit every
// program. Its number is from the range that RFC 5531 Section 8.4 leaves to users.
//
//	echo_res ECHO(echo_args) = 1;
//	struct echo_args { unsigned tag; unsigned length; unsigned delay; opaque data<>; };
//	struct echo_res  { unsigned tag; opaque data<>; };
//
// Procedure 2, ECHO_SHORT, is the same, and its results have at most EchoShort octets, which the
// setting programs of a bridge may say.
//
// length is the number of octets of data in the Reply. delay is the number of
// microseconds before the Reply, at most maxDelay. tag selects the data of both.
const (
	EchoProgram = 0x20000002
	EchoVersion = 1
	EchoProc    = 1

	EchoProcShort = 2    // ECHO_SHORT
	EchoShort     = 2048 // octets of its results, at most
)

// Procedures of NFSv3 that the Server answers. RFC 1813 Section 3.3.
const (
	procNull    = 0
	procGetattr = 1
	procRead    = 6
	procWrite   = 7
)

const (
	maxDelay = 10e6 // microseconds

	echoCallHead  = oncrpc.CallHeaderMin + 4*4
	echoReplyHead = oncrpc.ReplyHeader + 2*4

	handleLen = 28 // of NFSv3 file handles, as in Linux
	attrLen   = 84 // fattr3
	fileidAt  = 52 // in fattr3
	headMax   = 256

	// inlineData is the most octets of data that are kept next to the head of
	// their Call: copying them costs less than another iovec.
	inlineData = 2048

	// inlineReply is the same for Replies. replyRoom is the memory for their heads
	// and such data.
	inlineReply = 256
	replyRoom   = 512 - 4
)

// MinEchoCall and MinEchoReply are the smallest echo messages, those without
// data, in octets.
const (
	MinEchoCall  = echoCallHead
	MinEchoReply = echoReplyHead
)

// accepted are the octets behind the XID in a Reply with results: REPLY,
// MSG_ACCEPTED, AUTH_NONE, no verifier, SUCCESS.
var accepted = [20]byte{3: oncrpc.TypeReply}

// An op is one kind of Call, encoded except its XID and tag, and the Reply that it
// must get.
type op struct {
	name string
	head []byte // the Call up to its data
	size int    // octets of data that follow

	tagAt int  // position of the tag in head
	wide  bool // the tag is an offset of 64 bits

	reply  int    // octets of the Reply
	dataAt int    // position of its data; equals reply when it has none
	echoAt int    // position of the tag in it; 0 when it has none
	want   []byte // the beginning of its results
}

// callLen returns the length of the Call in octets.
func (o *op) callLen() int { return len(o.head) + o.size }

// patch writes the XID and the tag of one Call into its head b.
func (o *op) patch(b []byte, xid, tag uint32) {
	binary.BigEndian.PutUint32(b, xid)
	switch {
	case o.wide: // an offset; the pattern has a new beginning every 8 octets
		binary.BigEndian.PutUint64(b[o.tagAt:], uint64(tag)*8)
	case o.tagAt > 0:
		binary.BigEndian.PutUint32(b[o.tagAt:], tag)
	}
}

// echoOp returns the echo Call of call octets whose Reply has reply octets. It rounds both
// up to whole XDR units, and to at least MinEchoCall and MinEchoReply.
func echoOp(call, reply int, delay uint32) (*op, error) {
	n := xdr.Roundup(max(0, call-echoCallHead))
	m := xdr.Roundup(max(0, reply-echoReplyHead))
	if n > maxData || m > maxData {
		return nil, fmt.Errorf("--call %d and --reply %d are too long; write %d at most", call, reply, maxData)
	}
	if delay > maxDelay {
		return nil, fmt.Errorf("--delay: %d us are too long; write %d us at most", delay, int(maxDelay))
	}
	proc := uint32(EchoProc)
	if 8+m <= EchoShort {
		proc = EchoProcShort
	}
	b := xdr.AppendWords(nil, 0, oncrpc.TypeCall, oncrpc.RPCVersion, EchoProgram, EchoVersion, proc)
	b = xdr.AppendWords(b, oncrpc.FlavorNone, 0, oncrpc.FlavorNone, 0)
	o := &op{name: "echo", size: n, tagAt: len(b), reply: echoReplyHead + m, dataAt: echoReplyHead, echoAt: oncrpc.ReplyHeader}
	o.head = xdr.AppendWords(b, 0, uint32(m), delay, uint32(n))
	return o, nil
}

// nfsHead returns the header of an NFSv3 Call with AUTH_SYS.
func nfsHead(proc uint32) []byte {
	cred := xdr.AppendWords(nil, 0)
	cred = xdr.AppendOpaque(cred, []byte("bench"))
	cred = xdr.AppendWords(cred, 0, 0, 0)
	b := xdr.AppendWords(nil, 0, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 3, proc)
	b = xdr.AppendOpaque(xdr.AppendWords(b, oncrpc.FlavorSys), cred)
	return xdr.AppendWords(b, oncrpc.FlavorNone, 0)
}

var fileHandle = []byte("rdmabridge-bench: the file..")

// nfsOp returns the NFSv3 Call with this name. size is the data of READ and WRITE in
// octets.
func nfsOp(name string, size int) (*op, error) {
	if size < 4 || size > maxData || size%4 != 0 {
		return nil, fmt.Errorf("--size %d is out of range; write 4 to %d, in steps of 4", size, maxData)
	}
	o := &op{name: name}
	switch name {
	case "null":
		o.head = nfsHead(procNull)
		o.reply = oncrpc.ReplyHeader
		o.dataAt = o.reply
	case "getattr":
		b := xdr.AppendOpaque(nfsHead(procGetattr), fileHandle)
		o.head, o.tagAt = b, len(b)-4 // the end of the handle
		o.want = xdr.AppendWords(nil, 0)
		o.reply = oncrpc.ReplyHeader + 4 + attrLen
		o.dataAt, o.echoAt = o.reply, oncrpc.ReplyHeader+4+fileidAt+4
	case "read":
		b := xdr.AppendOpaque(nfsHead(procRead), fileHandle)
		o.tagAt, o.wide = len(b), true
		o.head = xdr.AppendWords(b, 0, 0, uint32(size))
		o.want = xdr.AppendWords(nil, 0, 1)
		o.dataAt = oncrpc.ReplyHeader + 2*4 + attrLen + 3*4
		o.reply = o.dataAt + size
	case "write":
		b := xdr.AppendOpaque(nfsHead(procWrite), fileHandle)
		o.tagAt, o.wide, o.size = len(b), true, size
		o.head = xdr.AppendWords(b, 0, 0, uint32(size), 2, uint32(size)) // FILE_SYNC
		o.want = xdr.AppendWords(nil, 0, 1)
		o.reply = oncrpc.ReplyHeader + 4 + 4 + 24 + 4 + attrLen + 4*4
		o.dataAt, o.echoAt = o.reply, o.reply-4
	default:
		return nil, fmt.Errorf("--mix: nfs3 has no %q here; write null, getattr, read or write", name)
	}
	return o, nil
}

var (
	errShortReply = errors.New("reply of the wrong length")
	errTag        = errors.New("reply to another call")
	errData       = errors.New("reply with wrong data")
	errResults    = errors.New("reply with wrong results")
)

// A statusError reports a Reply without results.
type statusError struct{ AcceptStat uint32 }

func (e *statusError) Error() string {
	if e.AcceptStat == oncrpc.ProgramUnavailable {
		return "the server does not have this program; write --mix nfs3:null for a server of NFS that is not rdmabridge-bench server"
	}
	return fmt.Sprintf("the server has refused the Call (accept_stat %d); name a server that has the program, or look at its log", e.AcceptStat)
}

// check checks the Reply in parts. The caller has checked its XID. scratch has room for
// headMax octets.
func (o *op) check(parts [][]byte, tag uint32, full bool, scratch []byte) error {
	total := 0
	for _, p := range parts {
		total += len(p)
	}
	if total != o.reply {
		return o.wrong(parts, total)
	}
	m := parts[0]
	if len(m) < o.dataAt {
		m = scratch[:0]
		for _, p := range parts {
			m = append(m, p[:min(len(p), o.dataAt-len(m))]...)
		}
	}
	results := m[oncrpc.ReplyHeader:]
	switch {
	case !bytes.Equal(m[4:oncrpc.ReplyHeader], accepted[:]):
		return o.wrong(parts, total)
	case !bytes.HasPrefix(results, o.want):
		return errResults
	case o.echoAt > 0 && binary.BigEndian.Uint32(m[o.echoAt:]) != tag:
		return errTag
	}
	n := total - o.dataAt
	if n == 0 {
		return nil
	}
	want := dataOf(pattern(), tag, n)
	at := -o.dataAt // position of p in the data
	for _, p := range parts {
		if at+len(p) <= 0 {
			at += len(p)
			continue
		}
		if at < 0 {
			p, at = p[-at:], 0
		}
		if !matches(p, want[at:at+len(p)], full) {
			return errData
		}
		at += len(p)
	}
	return nil
}

// wrong returns the error for a Reply of the wrong length or without results.
func (o *op) wrong(parts [][]byte, total int) error {
	var m []byte
	for _, p := range parts {
		m = append(m, p[:min(len(p), headMax)]...)
	}
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(m, &r); err != nil {
		return err
	}
	if !r.Succeeded() {
		if r.Denied {
			return errors.New("call denied")
		}
		return &statusError{r.AcceptStat}
	}
	return fmt.Errorf("%w: %d octets, want %d", errShortReply, total, o.reply)
}
