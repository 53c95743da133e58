package doctor

import (
	"encoding/binary"
	"errors"
	"math"
	"syscall"
)

// maxNetlink is how many octets of answers netlink may send.
const maxNetlink = 1 << 20

var errNetlink = errors.New("netlink: answer not understood")

// The kinds of messages that end an answer: linux/netlink.h.
const (
	nlError = 2
	nlDone  = 3
)

const (
	nlHeaderLen = 16 // length, type, flags, sequence, port
	nlAttrLen   = 4  // length, type
)

// nlMessages calls each with the type and the body of every message in b. It reports whether the
// answer is complete, and the error that the kernel sent.
func nlMessages(b []byte, each func(kind uint16, body []byte)) (done bool, err error) {
	for len(b) >= nlHeaderLen {
		n := binary.NativeEndian.Uint32(b)
		if n < nlHeaderLen || uint64(n) > uint64(len(b)) {
			return false, errNetlink
		}
		kind, body := binary.NativeEndian.Uint16(b[4:]), b[nlHeaderLen:n]
		switch kind {
		case nlError:
			return true, nlErrno(body)
		case nlDone:
			return true, nil
		}
		each(kind, body)
		b = b[min(nlAlign(int(n)), len(b)):]
	}
	return false, nil
}

// nlErrno decodes the body of an error message, which is a negative number, or 0 for success.
func nlErrno(body []byte) error {
	if len(body) < 4 {
		return errNetlink
	}
	if n := int32(binary.NativeEndian.Uint32(body)); n < 0 && n > math.MinInt32 {
		return syscall.Errno(-n)
	}
	return nil
}

// nlAttrs calls each with every attribute in b, and stops at one that is malformed.
func nlAttrs(b []byte, each func(kind uint16, value []byte)) {
	for len(b) >= nlAttrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < nlAttrLen || n > len(b) {
			return
		}
		const flags = 0xc000 // nested, and byte order
		each(binary.NativeEndian.Uint16(b[2:])&^flags, b[nlAttrLen:n])
		b = b[min(nlAlign(n), len(b)):]
	}
}

// nlNumber returns an unsigned number of 1, 4 or 8 octets; 0 if value has another length.
func nlNumber(value []byte) uint64 {
	switch len(value) {
	case 1:
		return uint64(value[0])
	case 4:
		return uint64(binary.NativeEndian.Uint32(value))
	case 8:
		return binary.NativeEndian.Uint64(value)
	}
	return 0
}

// nlText returns a string, which ends with a zero octet.
func nlText(value []byte) string {
	for i, c := range value {
		if c == 0 {
			value = value[:i]
			break
		}
	}
	return printable(string(value))
}

func nlAlign(n int) int { return (n + 3) &^ 3 }

// nlRequest makes a message with one 32-bit attribute for each pair of attrs.
func nlRequest(kind, flags uint16, attrs ...[2]uint32) []byte {
	b := make([]byte, nlHeaderLen, nlHeaderLen+8*len(attrs))
	for _, a := range attrs {
		b = binary.NativeEndian.AppendUint16(b, nlAttrLen+4)
		b = binary.NativeEndian.AppendUint16(b, uint16(a[0]))
		b = binary.NativeEndian.AppendUint32(b, a[1])
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], flags)
	binary.NativeEndian.PutUint32(b[8:], 1)
	return b
}
