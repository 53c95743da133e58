package rpcrdma

import (
	"bytes"
	"encoding/binary"
)

// privateDataLen is the length of an encoded PrivateData in octets.
const privateDataLen = 8

// MaxInline is the largest size that PrivateData can express, in octets.
const MaxInline = 262144

const privateDataVersion = 1

// privateDataMagic is the Format Identifier, 0xf6ab0e18.
var privateDataMagic = []byte{0xf6, 0xab, 0x0e, 0x18}

// PrivateData is the announcement of a peer about itself while a connection is
// set up.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Format Identifier 0xf6ab0e18                 |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Version 1   |  Reserved   |R|   Send Size   | Receive Size  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 8797 Section 4.
type PrivateData struct {
	// RemoteInvalidation announces that every handle that the sender advertises
	// may be invalidated by a Send With Invalidate. Section 4.1.
	RemoteInvalidation bool
	// SendSize and RecvSize are the lengths in octets of the longest Send that
	// the sender makes and accepts: multiples of 1024 from 1024 to 262144.
	// Section 4.2.
	SendSize, RecvSize int
}

// AppendPrivateData appends p, privateDataLen octets. It rounds sizes down to a
// multiple of 1024 and clamps them to the range that can be expressed.
func AppendPrivateData(b []byte, p PrivateData) []byte {
	b = append(b, privateDataMagic...)
	var flags byte
	if p.RemoteInvalidation {
		flags = 1
	}
	return append(b, privateDataVersion, flags, encodeSize(p.SendSize), encodeSize(p.RecvSize))
}

func encodeSize(n int) byte { return byte(min(max(n, DefaultInline), MaxInline)/1024 - 1) }

func decodeSize(b byte) int { return (int(b) + 1) * 1024 }

// FindPrivateData searches b for a PrivateData. It may be at any offset, since
// other layers may have put their own octets before it (RFC 8797 Section 5.2).
// Without one, ok is false and p has the values that RFC 8166 assumes: no
// remote invalidation and 1024 octets in both directions.
func FindPrivateData(b []byte) (p PrivateData, ok bool) {
	for {
		i := bytes.Index(b, privateDataMagic)
		// "the receiver should check that the format version number field contains
		// a valid and recognized version number and the size of the content does
		// not overrun the length of the buffer."
		if i < 0 || len(b)-i < privateDataLen {
			return PrivateData{SendSize: DefaultInline, RecvSize: DefaultInline}, false
		}
		if w := binary.BigEndian.Uint32(b[i+4:]); w>>24 == privateDataVersion {
			return PrivateData{
				RemoteInvalidation: w>>16&1 == 1,
				SendSize:           decodeSize(byte(w >> 8)),
				RecvSize:           decodeSize(byte(w)),
			}, true
		}
		b = b[i+1:]
	}
}

// Inline returns the inline threshold, in octets, of messages from a peer that
// announced from to a peer that announced to: "the smaller of its own send size
// and the [...] reported receive size". RFC 8797 Section 4.2.
func Inline(from, to PrivateData) int {
	return max(min(from.SendSize, to.RecvSize), DefaultInline)
}
