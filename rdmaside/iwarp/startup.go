package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// Start-up: the exchange of MPA Request and Reply over a net.Conn, in blocking code
// under one deadline. RFC 5044 Section 7.1, RFC 6581.
//
// Both frames go out with one Write, and are read to their last octet and not
// beyond: what follows belongs to the loop. Linux siw hangs up on an octet that
// comes early, and on a Request in many small pieces.

// Bounds on what the ULP may ask for.
const (
	maxPrivate = 248                    // what is left of siw's 256 and of the block
	maxReads   = wire.NoNegotiation - 1 // 0x3fff means something else
)

// errNoReply is wrapped by Dial's error when the peer hung up on a Request without
// any answer. It decides whether another kind of Request is tried.
var errNoReply = errors.New("peer closed without a Reply")

// A request is a kind of Request. Dial tries them in this order; what worked is
// remembered by address.
type request uint8

const (
	// requestEnhanced: revision 2, client-server model.
	requestEnhanced request = iota
	// requestPeer: revision 2, peer-to-peer model, RTR by Write or Read. Intel's
	// adapters insist on it. It is not the default, because Linux siw's connection
	// manager dies when such a connection is reset before its RTR.
	requestPeer
	// requestRev1: RFC 5044 as it was.
	requestRev1
	requestKinds
)

// An rtr is how a peer-to-peer Initiator releases the Responder.
type rtr uint8

const (
	rtrNone rtr = iota
	rtrWrite
	rtrRead
	rtrSend
)

// agreed is what start-up came to.
type agreed struct {
	crc, markers bool
	ird, ord     int
	rtr          rtr
	private      []byte
}

// connOptions applies the defaults of fabric.ConnOptions and checks bounds.
func connOptions(o fabric.ConnOptions) (fabric.ConnOptions, error) {
	if len(o.PrivateData) > maxPrivate {
		return o, fmt.Errorf("iwarp: private data of %d octets, at most %d", len(o.PrivateData), maxPrivate)
	}
	def := func(v *int, d, most int) {
		switch {
		case *v == 0:
			*v = d
		case *v < 0:
			*v = 0
		}
		*v = min(*v, most)
	}
	def(&o.Receives, 256, 1<<20)
	def(&o.Sends, 1024, 1<<20)
	def(&o.Handles, 4096, 1<<22)
	def(&o.IRD, 32, maxReads)
	def(&o.ORD, 0, maxReads)
	return o, nil
}

func (p *Provider) flags() wire.FrameFlags {
	if p.opts.CRCOff {
		return 0
	}
	return wire.FlagCRC
}

// initiate sends the Request and reads the Reply. ctx ends the wait, except where
// cutting a peer-to-peer start-up short would harm the peer: between its Request
// and its RTR only the deadline does.
func (p *Provider) initiate(ctx context.Context, nc net.Conn, kind request, o fabric.ConnOptions) (agreed, error) {
	f := wire.Frame{Flags: p.flags(), Revision: 2, Private: o.PrivateData}
	e := wire.Enhanced{IRD: uint16(o.IRD), ORD: uint16(o.ORD)}
	switch kind {
	case requestRev1:
		f.Revision = 1
	case requestPeer:
		e.PeerToPeer, e.RTRWrite, e.RTRRead = true, true, true
		e.ORD = max(e.ORD, 1) // for the RTR
		f.Flags, f.Enhanced = f.Flags|wire.FlagEnhanced, e
	case requestEnhanced:
		f.Flags, f.Enhanced = f.Flags|wire.FlagEnhanced, e
	}
	if d, ok := ctx.Deadline(); ok {
		_ = nc.SetDeadline(d)
	}
	if kind != requestPeer {
		stop := interrupt(ctx, nc)
		defer stop()
	} else if ctx.Err() != nil {
		return agreed{}, ctx.Err()
	}
	if _, err := nc.Write(f.Append(nil)); err != nil {
		return agreed{}, noReply(ctx, err)
	}
	r, err := readFrame(nc, true)
	if err != nil {
		return agreed{}, noReply(ctx, err)
	}
	if r.Flags&wire.FlagReject != 0 {
		return agreed{}, &RejectError{Private: r.Private}
	}
	a := agreed{
		crc:     (f.Flags|r.Flags)&wire.FlagCRC != 0,
		markers: r.Flags&wire.FlagMarkers != 0,
		ird:     o.IRD, ord: o.ORD, private: r.Private,
	}
	if r.Revision != f.Revision || (r.Flags^f.Flags)&wire.FlagEnhanced != 0 && f.Revision > 1 {
		return a, fmt.Errorf("iwarp: reply of revision %d, flags %#x", r.Revision, uint8(r.Flags))
	}
	if kind == requestRev1 {
		return a, nil
	}
	e = r.Enhanced
	if e.ORD != wire.NoNegotiation && int(e.ORD) > o.IRD {
		return a, p.refuse(nc, a, wire.CodeIRD)
	}
	if e.IRD != wire.NoNegotiation {
		a.ord = min(a.ord, int(e.IRD))
	}
	if kind == requestPeer && e.PeerToPeer {
		switch {
		case e.RTRWrite:
			a.rtr = rtrWrite
		case e.RTRRead:
			a.rtr = rtrRead
		default:
			return a, p.refuse(nc, a, wire.CodeRTR)
		}
	}
	return a, nil
}

// refuse answers a Reply that cannot be lived with.
func (p *Provider) refuse(nc net.Conn, a agreed, c wire.Code) error {
	q := newQP(p.config(a, fabric.ConnOptions{}))
	q.start()
	q.terminate(c, nil, nil)
	for _, b := range q.output() {
		if _, err := nc.Write(b); err != nil {
			break
		}
	}
	linger(nc)
	return q.err
}

// linger reads what a peer still sends, for a second, before nc is closed: closing
// with octets unread makes the kernel send RST, which can overtake what was written.
func linger(nc net.Conn) {
	if c, ok := nc.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_ = nc.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.CopyN(io.Discard, nc, 1<<20)
	}
}

// interrupt makes nc's calls fail when ctx ends, until the function it returns is
// called.
func interrupt(ctx context.Context, nc net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
}

// noReply explains an error before the first octet of a Reply.
func noReply(ctx context.Context, err error) error {
	var ne net.Error
	var fe *wire.FrameError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("iwarp: start-up: %w", ctx.Err())
	case errors.As(err, &fe), errors.Is(err, wire.ErrBothInitiators), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("iwarp: start-up: %w", err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("iwarp: start-up: %w", err)
	}
	return fmt.Errorf("iwarp: start-up: %w: %w", errNoReply, err)
}

// readFrame reads a Request, or a Reply. io.EOF means that nothing came.
func readFrame(nc net.Conn, reply bool) (wire.Frame, error) {
	var b [wire.FrameLen + wire.MaxPrivate]byte
	if _, err := io.ReadFull(nc, b[:wire.FrameLen]); err != nil {
		return wire.Frame{}, err
	}
	f, n, err := wire.ParseFrameHeader(b[:wire.FrameLen])
	if err != nil {
		return f, err
	}
	if f.Reply != reply {
		if reply {
			return f, wire.ErrBothInitiators
		}
		return f, &wire.FrameError{Reason: "a Reply to nothing"}
	}
	if _, err := io.ReadFull(nc, b[wire.FrameLen:wire.FrameLen+n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	return f, f.ParsePrivate(append([]byte(nil), b[wire.FrameLen:wire.FrameLen+n]...))
}

// checkRequest says whether a Request can be answered.
func checkRequest(f wire.Frame) error {
	switch {
	case f.Revision < 1 || f.Revision > 2:
		// Revision 0 goes with DDP and RDMAP versions 0.
		return &wire.FrameError{Reason: fmt.Sprintf("revision %d", f.Revision)}
	case f.Revision == 1 && f.Flags&wire.FlagEnhanced != 0:
		return &wire.FrameError{Reason: "S in revision 1"}
	}
	return nil
}

// answer works out the Reply to the Request f, and what it amounts to. Flags are
// set, never copied. RFC 6581 Section 9.
func (p *Provider) answer(f wire.Frame, o fabric.ConnOptions) (wire.Frame, agreed) {
	r := wire.Frame{
		Reply: true, Revision: f.Revision, Private: o.PrivateData,
		Flags: p.flags() | f.Flags&wire.FlagCRC | f.Flags&wire.FlagEnhanced,
	}
	a := agreed{
		crc:     r.Flags&wire.FlagCRC != 0,
		markers: f.Flags&wire.FlagMarkers != 0,
		ird:     o.IRD, ord: o.ORD, private: f.Private,
	}
	if f.Flags&wire.FlagEnhanced == 0 {
		return r, a
	}
	e := f.Enhanced
	r.Enhanced.IRD, r.Enhanced.ORD = wire.NoNegotiation, wire.NoNegotiation
	if e.PeerToPeer {
		// One bit only, one that was offered if there is one: an adapter that compares
		// for equality hangs up on more.
		r.Enhanced.PeerToPeer = true
		switch {
		case e.RTRWrite:
			a.rtr, r.Enhanced.RTRWrite = rtrWrite, true
		case e.RTRRead:
			a.rtr, r.Enhanced.RTRRead = rtrRead, true
		case e.RTRSend:
			a.rtr, r.Enhanced.RTRSend = rtrSend, true
		default:
			a.rtr, r.Enhanced.RTRWrite = rtrWrite, true
		}
	}
	if e.IRD != wire.NoNegotiation {
		a.ord = min(a.ord, int(e.IRD))
		r.Enhanced.ORD = uint16(a.ord)
	}
	if e.ORD != wire.NoNegotiation {
		a.ird = min(a.ird, int(e.ORD))
		if a.rtr == rtrRead {
			a.ird = max(a.ird, 1)
		}
		r.Enhanced.IRD = uint16(a.ird)
	}
	return r, a
}

// config is the qp's configuration for what was agreed.
func (p *Provider) config(a agreed, o fabric.ConnOptions) qpConfig {
	return qpConfig{
		crc: a.crc, markers: a.markers,
		ird: a.ird, ord: a.ord,
		receives: o.Receives, sends: o.Sends, handlesN: o.Handles,
		limits: p.limits, pool: &p.batches,
	}
}
