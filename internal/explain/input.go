package explain

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// maxInput bounds the length of an input, all of which is kept in memory. The messages
// found in it take a few times as much at worst.
const maxInput = 1 << 30

// An Input is the messages to explain.
type Input struct {
	format  string           // as header.Format
	octets  int              // length of the file
	capture *capture.Capture // nil if the input is not a capture
	data    []byte           // one message, or records with their marks
	marked  bool             // whether data begins with a record mark
}

// ParseHex parses a message, or records, in hex.
func ParseHex(text string) (*Input, error) {
	b, err := parseHex([]byte(text))
	if err != nil {
		return nil, err
	}
	return dataInput(b, "hex"), nil
}

// Read reads an input and detects its format.
func Read(r io.Reader) (*Input, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxInput:
		return nil, errors.New("longer than 1 GiB; split it with editcap -c or tcpdump -r -c")
	}
	return sniff(b)
}

// sniff detects the format of b.
func sniff(b []byte) (*Input, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("nothing is in it; name a capture of tcpdump or of rdmabridge capture, or write hex")
	case bytes.HasPrefix(b, []byte{0x1f, 0x8b}):
		return nil, errors.New("compressed by gzip; unpack it first")
	case bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("compressed by zstd; unpack it first")
	case bytes.HasPrefix(b, []byte{0x0a, 0x0d, 0x0d, 0x0a}) || capture.IsCapture(b):
		c, err := capture.Read(b)
		if err != nil {
			return nil, err
		}
		return &Input{format: "capture", octets: len(b), capture: c}, nil
	}
	if h, err := parseHex(b); err == nil {
		return dataInput(h, "hex"), nil
	} else if looksLikeText(b) {
		return nil, fmt.Errorf("this is text, and neither a capture (pcap or pcapng) nor hex: %w; rdmabridge check FILE explains a configuration", err)
	}
	return dataInput(b, "raw"), nil
}

// looksLikeText reports whether b, which is not hex, is text. Text is reported as a
// mistake in hex; everything else counts as a raw message.
func looksLikeText(b []byte) bool {
	for _, c := range b[:min(len(b), 512)] {
		if c >= 0x7f || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return true
}

// parseHex parses hex digits. It skips white space, colons, commas, underscores and 0x
// between them, and comments from # to the end of the line.
func parseHex(text []byte) ([]byte, error) {
	digits := make([]byte, 0, len(text))
	for line, rest := []byte(nil), text; len(rest) > 0; {
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		line, _, _ = bytes.Cut(line, []byte("#"))
		for i := 0; i < len(line); i++ {
			switch c := line[i]; {
			case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
				if c == '0' && i+1 < len(line) && line[i+1]|0x20 == 'x' && len(digits)%2 == 0 {
					i++
					continue
				}
				digits = append(digits, c)
			case bytes.IndexByte([]byte(" \t\r:,_"), c) >= 0:
			default:
				return nil, fmt.Errorf("%q is not a hex digit", rune(c))
			}
		}
	}
	if len(digits) == 0 {
		return nil, errors.New("no hex digits")
	}
	if len(digits)%2 != 0 {
		return nil, fmt.Errorf("%d hex digits: want an even number", len(digits))
	}
	n, err := hex.Decode(digits, digits)
	return digits[:n], err
}

// dataInput returns the input b, which is not a capture.
func dataInput(b []byte, format string) *Input {
	return &Input{format: format, octets: len(b), data: b, marked: hasMark(b)}
}

// hasMark reports whether b begins with a record mark rather than with an XID. The word
// that says Call or Reply follows the XID. If b may be either, the length in the mark
// decides.
func hasMark(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	mark := binary.BigEndian.Uint32(b)
	fits := mark>>31 == 1 && int(mark&^(1<<31)) == len(b)-4
	return !transportHeader(b) && (fits || !likelyMessage(b) && likelyMessage(b[4:]))
}

// likelyMessage reports whether b begins like an RPC message.
func likelyMessage(b []byte) bool {
	_, kind, ok := oncrpc.MessageType(b)
	if !ok || len(b) < 12 {
		return false
	}
	w := binary.BigEndian.Uint32(b[8:])
	return kind == oncrpc.TypeCall && w == oncrpc.RPCVersion || kind == oncrpc.TypeReply && w <= 1
}

// transportHeader reports whether b is an RPC-over-RDMA message. The first two words of
// an RPC Reply look the same. The words after them differ, except between a header with
// one credit and a denied Reply, which has at most 24 octets.
func transportHeader(b []byte) bool {
	var h rpcrdma.Header
	n, err := h.Decode(b)
	if err != nil {
		return false
	}
	switch h.Proc {
	case rpcrdma.Msg:
		// It is an error if "the value of the rdma_xid field does not match the value of
		// the XID field in the accompanying RPC message": RFC 8166 Section 4.5.2.
		xid, kind, ok := oncrpc.MessageType(b[n:])
		return ok && xid == h.XID && kind <= oncrpc.TypeReply
	case rpcrdma.NoMsg:
		return n == len(b)
	}
	return h.Proc == rpcrdma.Error && n == len(b) && h.Credits > 0
}
