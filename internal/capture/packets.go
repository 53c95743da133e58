package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// errFormat is returned for files that are neither pcap nor pcapng.
var errFormat = errors.New("not a capture of tcpdump (pcap or pcapng)")

// The first four octets of a capture, big-endian or little-endian.
const (
	magicMicro  = 0xa1b2c3d4
	magicNano   = 0xa1b23c4d
	magicBlocks = 0x0a0d0d0a // pcapng: the type of a Section Header Block
	magicOrder  = 0x1a2b3c4d // pcapng: in the Section Header Block
)

// IsCapture reports whether b begins like a capture that Read can read.
func IsCapture(b []byte) bool {
	_, err := newPackets(b)
	return err == nil
}

// A packet is one packet of a capture.
type packet struct {
	Number int       // from 1, as tcpdump and Wireshark count
	Time   time.Time // zero when the file does not have it
	Link   uint32    // LINKTYPE_ of the interface
	Data   []byte    // the captured octets, in the file
	Length uint32    // octets of the whole packet; len(Data) or more
}

// A packetReader walks the packets of a file: pcap as described in
// draft-ietf-opsawg-pcap, pcapng as described in draft-ietf-opsawg-pcapng.
type packetReader struct {
	b     []byte
	pos   int
	order binary.ByteOrder
	next  func(*packetReader, *packet) error
	count int

	// pcap
	nano bool
	link uint32

	// pcapng
	interfaces []iface
}

// An iface is an Interface Description Block.
type iface struct {
	link    uint32
	snap    uint32 // 0 for no limit
	perSec  uint64 // units of its timestamps in a second; 0 when unknown
	present bool
}

const (
	pcapHeader = 24
	pcapRecord = 16
	blockMin   = 12
)

// newPackets returns a reader of the file b. The error is errFormat.
func newPackets(b []byte) (*packetReader, error) {
	if len(b) < 4 {
		return nil, errFormat
	}
	if binary.BigEndian.Uint32(b) == magicBlocks {
		p := &packetReader{b: b, next: (*packetReader).nextBlock}
		if len(b) < 12 || !p.setOrder(b) {
			return nil, errFormat
		}
		return p, nil
	}
	if len(b) < pcapHeader {
		return nil, errFormat
	}
	p := &packetReader{b: b, pos: pcapHeader, next: (*packetReader).nextRecord}
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch o.Uint32(b) {
		case magicNano:
			p.nano = true
		case magicMicro:
		default:
			continue
		}
		p.order = o
		// The upper bits tell whether a frame ends with a check sequence.
		p.link = o.Uint32(b[20:]) & 0xffff
		return p, nil
	}
	return nil, errFormat
}

// read fills p with the next packet. The error is io.EOF at the end of the file. Any other
// error says where the file is broken, and after it the reader returns io.EOF.
func (r *packetReader) read(p *packet) error {
	if err := r.next(r, p); err != nil {
		r.pos = len(r.b)
		return err
	}
	r.count++
	p.Number = r.count
	return nil
}

func (r *packetReader) broken(format string, args ...any) error {
	return fmt.Errorf("capture breaks off at octet %d, behind packet %d: %s", r.pos, r.count, fmt.Sprintf(format, args...))
}

// nextRecord reads a record of pcap: seconds, fraction, captured, original.
func (r *packetReader) nextRecord(p *packet) error {
	b := r.b[r.pos:]
	switch {
	case len(b) == 0:
		return io.EOF
	case len(b) < pcapRecord:
		return r.broken("%d octets of a packet's header", len(b))
	}
	sec, frac := r.order.Uint32(b), r.order.Uint32(b[4:])
	n, length := r.order.Uint32(b[8:]), r.order.Uint32(b[12:])
	if uint64(n) > uint64(len(b)-pcapRecord) {
		return r.broken("a packet of %d octets, %d are left", n, len(b)-pcapRecord)
	}
	ns := int64(frac)
	if !r.nano {
		ns *= 1000
	}
	*p = packet{Time: time.Unix(int64(sec), ns).UTC(), Link: r.link, Data: b[pcapRecord : pcapRecord+n : pcapRecord+n], Length: max(n, length)}
	r.pos += pcapRecord + int(n)
	return nil
}

// Block types of pcapng.
const (
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

func (r *packetReader) setOrder(b []byte) bool {
	switch {
	case binary.LittleEndian.Uint32(b[8:]) == magicOrder:
		r.order = binary.LittleEndian
	case binary.BigEndian.Uint32(b[8:]) == magicOrder:
		r.order = binary.BigEndian
	default:
		return false
	}
	return true
}

// nextBlock reads blocks of pcapng up to one with a packet, and skips the others. Each is
// type, length, body, length.
func (r *packetReader) nextBlock(p *packet) error {
	for {
		b := r.b[r.pos:]
		switch {
		case len(b) == 0:
			return io.EOF
		case len(b) < blockMin:
			return r.broken("%d octets of a block", len(b))
		}
		if binary.BigEndian.Uint32(b) == magicBlocks {
			// A new section has its own byte order and interfaces.
			if !r.setOrder(b) {
				return r.broken("a section without a byte-order magic")
			}
			r.interfaces = r.interfaces[:0]
		}
		kind, n := r.order.Uint32(b), r.order.Uint32(b[4:])
		if n < blockMin || n%4 != 0 {
			return r.broken("a block of %d octets", n)
		}
		if uint64(n) > uint64(len(b)) {
			return r.broken("a block of %d octets, %d are left", n, len(b))
		}
		body := b[8 : n-4]
		found := false
		switch kind {
		case blockInterface:
			r.addInterface(body)
		case blockEnhanced, blockPacket, blockSimple:
			found = r.blockPacket(kind, body, p)
			if !found {
				return r.broken("a block of type %d that is malformed", kind)
			}
		}
		r.pos += int(n)
		if found {
			return nil
		}
	}
}

// addInterface reads an Interface Description Block: link type, reserved, snap
// length, options. A block that is too short adds an interface that no packet can
// be from, so that the others keep their numbers.
func (r *packetReader) addInterface(b []byte) {
	f := iface{perSec: 1e6}
	if len(b) >= 8 {
		f.link, f.snap, f.present = uint32(r.order.Uint16(b)), r.order.Uint32(b[4:]), true
		b = b[8:]
	}
	for f.present && len(b) >= 4 {
		code, n := r.order.Uint16(b), int(r.order.Uint16(b[2:]))
		b = b[4:]
		if code == 0 || n > len(b) {
			break
		}
		if code == 9 && n >= 1 { // if_tsresol
			f.perSec = perSecond(b[0])
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	r.interfaces = append(r.interfaces, f)
}

// perSecond returns the number of units in a second: 10 to the power v, or, when the high
// bit of v is set, 2 to the power of the other bits. It returns 0 when that overflows.
func perSecond(v byte) uint64 {
	n := uint64(1)
	if v&0x80 != 0 {
		if v &= 0x7f; v > 62 {
			return 0
		}
		return n << v
	}
	if v > 18 {
		return 0
	}
	for ; v > 0; v-- {
		n *= 10
	}
	return n
}

// blockPacket reads the body of a block with a packet. It reports false when the body is
// malformed.
func (r *packetReader) blockPacket(kind uint32, b []byte, p *packet) bool {
	var i, n, length uint32
	var at uint64
	timed := false
	switch {
	case kind == blockSimple && len(b) >= 4: // length, data; of interface 0
		length = r.order.Uint32(b)
		b = b[4:]
		n = min(length, uint32(len(b)))
		if len(r.interfaces) > 0 && r.interfaces[0].snap > 0 {
			n = min(n, r.interfaces[0].snap)
		}
	case kind != blockSimple && len(b) >= 20: // interface, time, captured, length, data
		i = r.order.Uint32(b)
		if kind == blockPacket { // interface and drops, 16 bits each
			i = uint32(r.order.Uint16(b))
		}
		at, timed = uint64(r.order.Uint32(b[4:]))<<32|uint64(r.order.Uint32(b[8:])), true
		n, length = r.order.Uint32(b[12:]), r.order.Uint32(b[16:])
		b = b[20:]
	default:
		return false
	}
	if uint64(n) > uint64(len(b)) || uint64(i) >= uint64(len(r.interfaces)) || !r.interfaces[i].present {
		return false
	}
	f := &r.interfaces[i]
	*p = packet{Link: f.link, Data: b[:n:n], Length: max(n, length)}
	if timed && f.perSec > 0 {
		hi, lo := bits.Mul64(at%f.perSec, 1e9)
		ns, _ := bits.Div64(hi, lo, f.perSec) // hi < perSec, as at%perSec is
		p.Time = time.Unix(int64(at/f.perSec), int64(ns)).UTC()
	}
	return true
}
