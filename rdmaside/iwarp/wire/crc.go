package wire

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32c of b.
func Checksum(b []byte) uint32 { return crc32.Update(0, castagnoli, b) }

// Update returns crc extended by b. The CRC32c of no octets is 0.
func Update(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// AppendCRC appends a CRC in its wire form: least significant octet first. It is the
// only field of iWARP that is not big-endian. RFC 5044 Section 4.4, Figures 5 and 6.
func AppendCRC(b []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(b, crc) }

// PutCRC writes what AppendCRC appends to the front of b.
func PutCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// CRC reads the wire form that AppendCRC writes. The caller checks len(b) >= CRCLen.
func CRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
