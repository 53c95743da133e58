package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
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
	Number   int       // from 1, as tcpdump and Wireshark count
	Time     time.Time // zero when the file does not have it
	Link     uint32    // LINKTYPE_ of the interface
	Data     []byte    // the captured octets
	Length   uint32    // octets of the whole packet; len(Data) or more
	Comments []string  // of pcapng
}

// A packetReader walks the packets of a file with the readers of pcapgo.
type packetReader struct {
	classic *pcapgo.Reader   // of pcap; nil for pcapng
	ng      *pcapgo.NgReader // of pcapng
	count   int
	ended   bool
}

// newPackets returns a reader of the file b. The error is errFormat. The magic is looked at here,
// because pcapgo would uncompress a file, of whatever size.
func newPackets(b []byte) (*packetReader, error) {
	if len(b) < 4 {
		return nil, errFormat
	}
	r := new(packetReader)
	var err error
	switch be, le := binary.BigEndian.Uint32(b), binary.LittleEndian.Uint32(b); {
	case be == magicBlocks:
		r.ng, err = pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	case be == magicMicro, be == magicNano, le == magicMicro, le == magicNano:
		if r.classic, err = pcapgo.NewReader(bytes.NewReader(b)); err == nil {
			r.classic.SetSnaplen(math.MaxInt32) // tcpdump ignores what the file says, too
		}
	default:
		return nil, errFormat
	}
	if err != nil {
		return nil, errFormat
	}
	return r, nil
}

// read fills p with the next packet. The error is io.EOF at the end of the file. Any other
// error says where the file is broken, and after it the reader returns io.EOF.
func (r *packetReader) read(p *packet) error {
	if r.ended {
		return io.EOF
	}
	var data []byte
	var ci gopacket.CaptureInfo
	var options pcapgo.NgPacketOptions
	var link layers.LinkType
	var err error
	if r.classic != nil {
		data, ci, err = r.classic.ReadPacketData()
		link = r.classic.LinkType()
	} else {
		data, ci, options, err = r.ng.ReadPacketDataWithOptions()
		if err == nil {
			link, _ = ci.AncillaryData[0].(layers.LinkType)
		}
	}
	if err != nil {
		r.ended = true
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends within a packet")
		}
		return fmt.Errorf("capture breaks off behind packet %d: %w", r.count, err)
	}
	r.count++
	*p = packet{
		Number: r.count, Time: ci.Timestamp, Link: uint32(link), Data: data,
		Length: uint32(max(len(data), min(ci.Length, math.MaxUint32))), Comments: options.Comments,
	}
	if p.Time.Unix() == 0 {
		p.Time = time.Time{} // the resolution of the interface is of no use
	}
	if !p.Time.IsZero() {
		p.Time = p.Time.UTC()
	}
	return nil
}
