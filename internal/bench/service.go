package bench

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A service answers Calls. All loops share it.
type service struct {
	pattern []byte // constant, in memory that providers can send from
	full    bool

	wrong atomic.Uint64 // Calls whose data differ from the data of their tag
}

// An answer is a Reply before it is sent.
type answer struct {
	head  []byte // grows by appending
	data  []byte // a slice of the pattern
	delay time.Duration
}

// attributes is the fattr3 of a regular file. RFC 1813 Section 2.6.
var attributes = func() []byte {
	b := xdr.AppendWords(nil, 1, 0o644, 1, 0, 0) // NF3REG, mode, nlink, uid, gid
	b = binary.BigEndian.AppendUint64(b, 1<<40)
	b = binary.BigEndian.AppendUint64(b, 1<<40)
	b = xdr.AppendWords(b, 0, 0)                            // rdev
	b = binary.BigEndian.AppendUint64(b, 1)                 // fsid
	b = binary.BigEndian.AppendUint64(b, 1)                 // fileid
	return xdr.AppendWords(b, 1<<30, 0, 1<<30, 0, 1<<30, 0) // atime, mtime, ctime
}()

// appendAttributes appends the fattr3 of the file whose handle ends in id.
func appendAttributes(b []byte, id uint32) []byte {
	n := len(b)
	b = append(b, attributes...)
	binary.BigEndian.PutUint32(b[n+fileidAt+4:], id)
	return b
}

// answer answers c. a.head is empty and has room for replyRoom octets.
func (s *service) answer(c *oncrpc.Call, a *answer) {
	a.head = oncrpc.AppendAccepted(a.head, c.XID, oncrpc.Success)
	start, end, ok := c.Arguments()
	args := xdr.NewCursor(c.Message[:end], start)
	stat := uint32(oncrpc.GarbageArguments)
	switch {
	case c.Procedure == procNull && (c.Program == EchoProgram || c.Program == oncrpc.ProgramNFS):
		return
	case !ok:
	case c.Program == EchoProgram:
		stat = s.echo(c, &args, a)
	case c.Program == oncrpc.ProgramNFS && c.Version == 3:
		stat = s.nfs(c, &args, a)
	default:
		stat = oncrpc.ProgramUnavailable
	}
	if stat != oncrpc.Success {
		a.head, a.data, a.delay = oncrpc.AppendAccepted(a.head[:0], c.XID, stat), nil, 0
	}
}

func (s *service) echo(c *oncrpc.Call, args *xdr.Cursor, a *answer) uint32 {
	if c.Procedure != EchoProc && c.Procedure != EchoProcShort {
		return oncrpc.ProcedureUnavailable
	}
	tag, n, delay := args.Uint32(), args.Uint32(), args.Uint32()
	at, got := args.Opaque()
	if !args.OK() || n > maxData || got > maxData || delay > maxDelay || c.Procedure == EchoProcShort && 8+xdr.Roundup(int(n)) > EchoShort {
		return oncrpc.GarbageArguments
	}
	if !s.verify(c.Message[at:at+got], tag) {
		return oncrpc.SystemError
	}
	a.head = xdr.AppendWords(a.head, tag, n)
	a.data = dataOf(s.pattern, tag, int(n))
	a.delay = time.Duration(delay) * time.Microsecond
	return oncrpc.Success
}

// nfs answers NFSv3. Every handle is a file of 1 TiB that contains the pattern.
func (s *service) nfs(c *oncrpc.Call, args *xdr.Cursor, a *answer) uint32 {
	at, n := args.Opaque()
	if !args.OK() || n < 4 {
		return oncrpc.GarbageArguments
	}
	id := binary.BigEndian.Uint32(c.Message[at+n-4:])
	switch c.Procedure {
	case procGetattr:
		a.head = appendAttributes(xdr.AppendWords(a.head, 0), id)
	case procRead:
		tag, count := uint32(args.Uint64()/8), args.Uint32()
		if !args.OK() || count > maxData {
			return oncrpc.GarbageArguments
		}
		a.head = appendAttributes(xdr.AppendWords(a.head, 0, 1), id)
		a.head = xdr.AppendWords(a.head, count, 0, count)
		a.data = dataOf(s.pattern, tag, int(count))
	case procWrite:
		tag := uint32(args.Uint64() / 8)
		args.Skip(2 * 4) // count, stable
		at, n := args.Opaque()
		if !args.OK() || n > maxData {
			return oncrpc.GarbageArguments
		}
		if !s.verify(c.Message[at:at+n], tag) {
			return oncrpc.SystemError
		}
		// wcc_data with both attributes, count, FILE_SYNC, verifier.
		a.head = xdr.AppendWords(a.head, 0, 1, 0, 1<<30, 1<<30, 0, 1<<30, 0, 1)
		a.head = appendAttributes(a.head, id)
		a.head = xdr.AppendWords(a.head, uint32(n), 2, 0, tag)
	default:
		return oncrpc.ProcedureUnavailable
	}
	return oncrpc.Success
}

// verify reports whether data are the data of tag. If not, it counts the Call
// as wrong.
func (s *service) verify(data []byte, tag uint32) bool {
	if matches(data, dataOf(s.pattern, tag, len(data)), s.full) {
		return true
	}
	s.wrong.Add(1)
	return false
}

// parts returns the parts of the Reply, in p.
func (a *answer) parts(p *[3][]byte) [][]byte {
	p[0] = a.head
	n := len(a.data)
	if n == 0 {
		return p[:1]
	}
	if n <= inlineReply {
		p[0] = append(append(a.head, a.data...), 0, 0, 0)[:len(a.head)+xdr.Roundup(n)]
		return p[:1]
	}
	p[1] = a.data
	if pad := xdr.Padding(n); pad > 0 {
		// Behind the head, in the same memory.
		k := len(a.head)
		p[2] = append(a.head, 0, 0, 0)[k : k+pad]
		return p[:3]
	}
	return p[:2]
}
