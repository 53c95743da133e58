package rpcrdma

import "encoding/binary"

// The header of most messages is that of an RDMA_MSG without chunks:
//
//	xid - 1 - credits - 0 - 0 - 0 - 0

// AppendPlain appends the header of an RDMA_MSG without chunks, PlainLen octets.
func AppendPlain(b []byte, xid, credits uint32) []byte {
	b = appendFixed(b, xid, Version, credits, Msg)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// PutPlain makes b, which AppendPlain has made, the header for another message.
func PutPlain(b []byte, xid, credits uint32) {
	_ = b[PlainLen-1]
	binary.BigEndian.PutUint32(b, xid)
	binary.BigEndian.PutUint32(b[8:], credits)
}

// ParsePlain parses the header of an RDMA_MSG without chunks; the Payload stream
// is b[PlainLen:]. ok is false for every other message, valid or not: use
// Header.Decode for those.
func ParsePlain(b []byte) (xid, credits uint32, ok bool) {
	if len(b) < PlainLen {
		return 0, 0, false
	}
	b = b[:PlainLen]
	// Version 1 and procedure 0, then three absent lists.
	if binary.BigEndian.Uint32(b[4:]) != Version || binary.BigEndian.Uint64(b[12:])|binary.BigEndian.Uint64(b[20:]) != 0 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[8:]), true
}
