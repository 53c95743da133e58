// Package proxytest is for testing a whole proxy: RPC messages, clients and servers over
// both transports, and a harness that puts a proxy between them. A Reply is a function of
// its Call, so that [Expected] tells every octet of it.
package proxytest

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The echo program, which no binding knows. Its only procedure takes (reply
// length, delay in milliseconds, payload<>) and returns (checksum of the payload,
// data<reply length>). The data are a pattern of that checksum.
const (
	EchoProgram = 0x20000001
	EchoVersion = 1
	EchoProc    = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the checksum that servers return of the data they received.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// CallHeader appends a Call header with AUTH_SYS.
func CallHeader(b []byte, xid, program, version, procedure uint32) []byte {
	b = testkit.AppendWords(b, xid, 0, 2, program, version, procedure)
	cred := testkit.Words(0)
	cred = testkit.AppendOpaque(cred, []byte("proxytest"))
	cred = testkit.AppendWords(cred, 1000, 1000, 0)
	b = testkit.AppendWords(b, oncrpc.FlavorSys, uint32(len(cred)))
	b = append(b, cred...)
	return testkit.AppendWords(b, 0, 0)
}

// EchoCall is a Call to the echo program whose payload is a pattern of n octets.
func EchoCall(xid uint32, n, replyLen, delayMS int) []byte {
	return testkit.AppendPattern(echoHeader(xid, n, replyLen, delayMS), n, xid)
}

// EchoCallOf is a Call to the echo program with the given payload.
func EchoCallOf(xid uint32, payload []byte, replyLen, delayMS int) []byte {
	return testkit.AppendOpaque(echoHeader(xid, len(payload), replyLen, delayMS), payload)
}

// echoHeader is an EchoCall without its payload of n octets, for which it has room.
func echoHeader(xid uint32, n, replyLen, delayMS int) []byte {
	b := CallHeader(make([]byte, 0, n+128), xid, EchoProgram, EchoVersion, EchoProc)
	return testkit.AppendWords(b, uint32(replyLen), uint32(delayMS))
}

// EchoReply is the server's Reply to an EchoCall with that payload.
func EchoReply(xid uint32, payload []byte, replyLen int) []byte {
	b := testkit.AppendWords(make([]byte, 0, replyLen+64), xid, 1, 0, 0, 0, 0)
	sum := Checksum(payload)
	b = testkit.AppendWords(b, sum)
	return testkit.AppendPattern(b, replyLen, sum)
}

var handle = []byte("a file handle of 28 octets..")

// ReadCall is an NFSv3 READ of count octets at offset.
func ReadCall(xid uint32, offset uint64, count uint32) []byte {
	b := CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 6)
	b = testkit.AppendOpaque(b, handle)
	b = binary.BigEndian.AppendUint64(b, offset)
	return testkit.AppendWords(b, count)
}

// ReadReply is the server's answer.
func ReadReply(xid uint32, offset uint64, count uint32) []byte {
	b := testkit.AppendWords(make([]byte, 0, count+160), xid, 1, 0, 0, 0, 0)
	b = testkit.AppendWords(b, 0, 1)
	b = append(b, make([]byte, 84)...)
	b = testkit.AppendWords(b, count, 0)
	return testkit.AppendPattern(b, int(count), uint32(offset))
}

// WriteCall is an NFSv3 WRITE of n patterned octets at offset.
func WriteCall(xid uint32, offset uint64, n int) []byte {
	b := CallHeader(make([]byte, 0, n+256), xid, oncrpc.ProgramNFS, 3, 7)
	b = testkit.AppendOpaque(b, handle)
	b = binary.BigEndian.AppendUint64(b, offset)
	b = testkit.AppendWords(b, uint32(n), 2)
	return testkit.AppendPattern(b, n, uint32(offset))
}

// WriteReply is the server's answer; the verifier carries the data's checksum.
func WriteReply(xid uint32, data []byte) []byte {
	b := testkit.Words(xid, 1, 0, 0, 0, 0)
	b = testkit.AppendWords(b, 0, 0, 0, uint32(len(data)), 2)
	return testkit.AppendWords(b, 0xfeed, Checksum(data))
}

// ReadData is the offset of the data in a ReadReply: behind the Reply header, the status,
// the attributes with the word before them, count, eof, and the length of the data.
const ReadData = 24 + 4 + 4 + 84 + 4 + 4 + 4

// GetattrCall is an NFSv3 GETATTR.
func GetattrCall(xid uint32) []byte { return GetattrCallOf(xid, handle) }

// GetattrCallOf is an NFSv3 GETATTR of the file with the given handle.
func GetattrCallOf(xid uint32, file []byte) []byte {
	return testkit.AppendOpaque(CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 1), file)
}

// GetattrReply is the server's answer to a GETATTR with the arguments args: the
// attributes are a pattern of their checksum.
func GetattrReply(xid uint32, args []byte) []byte {
	return append(testkit.Words(xid, 1, 0, 0, 0, 0, 0), testkit.Pattern(84, Checksum(args))...)
}

// MkdirCall is an NFSv3 MKDIR, which must not be executed twice.
func MkdirCall(xid uint32, name string) []byte {
	b := CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 9)
	b = testkit.AppendOpaque(b, handle)
	b = testkit.AppendOpaque(b, []byte(name))
	return testkit.AppendWords(b, 0, 0, 0, 0, 0, 0)
}

// MkdirReply is the server's answer to a MKDIR with the arguments args: the handle of
// the new directory is a pattern of their checksum.
func MkdirReply(xid uint32, args []byte) []byte {
	b := testkit.AppendOpaque(testkit.Words(xid, 1, 0, 0, 0, 0, 0, 1), testkit.Pattern(32, Checksum(args)))
	return testkit.AppendWords(b, 0, 0, 0)
}

// CompoundCall is an NFSv4 COMPOUND.
func CompoundCall(xid, minor uint32, ops ...[]byte) []byte {
	b := CallHeader(nil, xid, oncrpc.ProgramNFS, 4, 1)
	b = testkit.AppendWords(b, 0, minor, uint32(len(ops)))
	for _, op := range ops {
		b = append(b, op...)
	}
	return b
}

// CompoundReply is the server's answer to one with the arguments args: the tag is
// their checksum, and there are no results.
func CompoundReply(xid uint32, args []byte) []byte {
	return testkit.AppendWords(testkit.Words(xid, 1, 0, 0, 0, 0), 0, 4, Checksum(args), 0)
}

// Sequence is the operation SEQUENCE on session id.
func Sequence(id [16]byte, sequence, slot uint32) []byte {
	return testkit.AppendWords(append(testkit.Words(53), id[:]...), sequence, slot, 63, 0)
}

// SequenceCall is a COMPOUND of NFSv4.2 with SEQUENCE alone.
func SequenceCall(xid uint32) []byte {
	return CompoundCall(xid, 2, Sequence([16]byte{1}, xid, xid%64))
}

// GSSCall returns the Call m, which a function above made, under RPCSEC_GSS: krb5
// without a service (1), or with the name alone of integrity (2) or privacy (3).
func GSSCall(m []byte, sequence, service uint32) []byte {
	return GSSCallOf("contexthandle...", m, sequence, service)
}

// GSSCallOf does what GSSCall does, for the GSS context with the given handle.
func GSSCallOf(context string, m []byte, sequence, service uint32) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		panic(err)
	}
	b := append([]byte(nil), m[:24]...)
	cred := testkit.AppendOpaque(testkit.Words(1, 0, sequence, service), []byte(context))
	b = testkit.AppendWords(b, oncrpc.FlavorGSS, uint32(len(cred)))
	b = append(b, cred...)
	b = testkit.AppendOpaque(testkit.AppendWords(b, oncrpc.FlavorGSS), []byte("a MIC of 16 octs"))
	if service == 3 {
		return testkit.AppendOpaque(b, m[c.Args:])
	}
	return append(b, m[c.Args:]...)
}

// CallbackProgram is RFC 8881's NFS4_CALLBACK.
const CallbackProgram = 0x40000000

// CallbackCall is a CB_COMPOUND with n octets of tag.
func CallbackCall(xid uint32, n int) []byte {
	b := testkit.Words(xid, 0, 2, CallbackProgram, 1, 1, 0, 0, 0, 0)
	return testkit.AppendWords(testkit.AppendOpaque(b, testkit.Pattern(n, xid)), 1, 0, 0)
}

// CallbackReply is a client's answer to one, with n octets of tag.
func CallbackReply(xid uint32, n int) []byte {
	return testkit.AppendWords(testkit.AppendOpaque(testkit.Words(xid, 1, 0, 0, 0, 0, 0), testkit.Pattern(n, xid)), 0)
}

// XID returns the XID of the message m.
func XID(m []byte) uint32 { return binary.BigEndian.Uint32(m) }

// WithXID returns a copy of the message m with another XID.
func WithXID(m []byte, xid uint32) []byte {
	m = bytes.Clone(m)
	binary.BigEndian.PutUint32(m, xid)
	return m
}

// IsCall reports whether m is a Call.
func IsCall(m []byte) bool { return isType(m, oncrpc.TypeCall) }

// IsReply reports whether m is a Reply.
func IsReply(m []byte) bool { return isType(m, oncrpc.TypeReply) }

func isType(m []byte, want uint32) bool {
	_, mtype, ok := oncrpc.MessageType(m)
	return ok && mtype == want
}

// Expected returns the Reply that a correct server and bridge give to the Call
// m, which one of the functions above made.
func Expected(m []byte) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		return nil
	}
	return answer(&c)
}

// answer executes c, for every server here and in package chaos.
func answer(c *oncrpc.Call) []byte {
	args := c.Message[c.Args:]
	word := func(i int) uint32 { return binary.BigEndian.Uint32(args[i:]) }
	fail := func(stat uint32) []byte { return oncrpc.AppendAccepted(nil, c.XID, stat) }
	if c.Procedure == 0 {
		return fail(oncrpc.Success)
	}
	switch {
	case c.Program == EchoProgram && c.Procedure == EchoProc:
		if len(args) < 12 || int(word(8)) > len(args)-12 {
			return fail(oncrpc.GarbageArguments)
		}
		return EchoReply(c.XID, args[12:12+word(8)], int(word(0)))
	case c.Program == oncrpc.ProgramNFS && c.Version == 3:
		fl := 4 + (len(handle)+3)&^3
		switch c.Procedure {
		case 1:
			return GetattrReply(c.XID, args)
		case 6:
			if len(args) < fl+12 {
				return fail(oncrpc.GarbageArguments)
			}
			return ReadReply(c.XID, binary.BigEndian.Uint64(args[fl:]), word(fl+8))
		case 7:
			if len(args) < fl+20 || int(word(fl+16)) > len(args)-fl-20 {
				return fail(oncrpc.GarbageArguments)
			}
			n := int(word(fl + 16))
			return WriteReply(c.XID, args[fl+20:fl+20+n])
		case 9:
			return MkdirReply(c.XID, args)
		}
	}
	if c.Program == oncrpc.ProgramNFS && c.Version == 4 && c.Procedure == 1 {
		return CompoundReply(c.XID, args)
	}
	return fail(oncrpc.ProcedureUnavailable)
}

// delay returns the delay that an EchoCall asks for, in milliseconds.
func delay(c *oncrpc.Call) uint32 {
	if c.Program != EchoProgram || c.Procedure != EchoProc || len(c.Message) < c.Args+8 {
		return 0
	}
	return binary.BigEndian.Uint32(c.Message[c.Args+4:])
}
