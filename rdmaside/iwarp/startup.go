package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/protocol"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// Start-up: the exchange of MPA Request and Reply over a net.Conn, in blocking code
// under one deadline. RFC 5044 Section 7.1, RFC 6581.
//
// Each frame is written with one Write, because Linux siw closes the connection when a
// Request arrives in many small pieces, or an octet arrives early. A frame is read to its
// last octet and not beyond, because the loop reads the octets that follow.

// Bounds on the parameters that the ULP may request.
const (
	maxPrivate = 248                    // fits siw's 256 together with the Enhanced block
	maxReads   = wire.NoNegotiation - 1 // the largest IRD and ORD that can be negotiated
)

// errNoReply is wrapped by the error of an attempt to dial whose peer closed the
// connection without a Reply. Dial then tries another kind of Request.
var errNoReply = errors.New("peer closed without a Reply")

// A request is a kind of Request. Dial tries them in this order, and remembers for each
// address which kind the peer answered.
type request uint8

const (
	// requestEnhanced: revision 2, client-server model.
	requestEnhanced request = iota
	// requestPeer: revision 2, peer-to-peer model, RTR by Write or Read. Intel's
	// adapters accept nothing else. It is not the default, because Linux siw's connection
	// manager crashes when such a connection is reset before its RTR.
	requestPeer
	// requestRev1: RFC 5044 as it was.
	requestRev1
	requestKinds
)

// An rtr is the kind of FPDU with which a peer-to-peer Initiator tells the Responder
// that it may send.
type rtr uint8

const (
	rtrNone rtr = iota
	rtrWrite
	rtrRead
	rtrSend
)

// agreed has the parameters that both sides agreed on at start-up.
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
	return o.Bounded(maxReads, maxReads), nil
}

func (p *Provider) flags() wire.FrameFlags {
	if p.opts.CRCOff {
		return 0
	}
	return wire.FlagCRC
}

// initiate sends the Request and reads the Reply. The end of ctx interrupts it, except in
// the peer-to-peer model: resetting the connection between Request and RTR can crash the
// peer, so there only the deadline of ctx applies.
func (p *Provider) initiate(ctx context.Context, nc net.Conn, kind request, o fabric.ConnOptions) (agreed, error) {
	f := p.request(kind, o)
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
		return agreed{}, &rejectError{Private: r.Private}
	}
	return p.settle(nc, kind, f, r, o)
}

// request returns the Request of a kind.
func (p *Provider) request(kind request, o fabric.ConnOptions) wire.Frame {
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
	return f
}

// settle returns the parameters that the Reply r to the Request f agrees to. It
// terminates the connection when r asks for more than f offered.
func (p *Provider) settle(nc net.Conn, kind request, f, r wire.Frame, o fabric.ConnOptions) (agreed, error) {
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
	e := r.Enhanced
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

// refuse terminates a connection whose Reply is unacceptable.
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

// linger reads and drops input for at most a second before the caller closes nc. Closing
// with octets unread makes the kernel send RST, which can overtake octets written before.
func linger(nc net.Conn) {
	if c, ok := nc.(*net.TCPConn); ok && c.CloseWrite() == nil {
		_ = nc.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.CopyN(io.Discard, nc, 1<<20)
	}
}

// interrupt makes calls of nc's methods fail once ctx has ended. The caller undoes that
// with the function that interrupt returns.
func interrupt(ctx context.Context, nc net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
}

// noReply wraps an error that came instead of a Reply. It adds errNoReply when the peer
// closed the connection.
func noReply(ctx context.Context, err error) error {
	var ne net.Error
	var fe *wire.FrameError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("iwarp: start-up: %w", ctx.Err())
	case ctx.Err() != nil:
		return fmt.Errorf("iwarp: start-up: %w: %w", fabric.ErrNoRDMA, ctx.Err())
	case errors.As(err, &fe), errors.Is(err, wire.ErrBothInitiators), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, fabric.ErrNoRDMA):
		return fmt.Errorf("iwarp: start-up: %w", err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("iwarp: start-up: %w: %w", fabric.ErrNoRDMA, err)
	}
	return fmt.Errorf("iwarp: start-up: %w: %w: %w", fabric.ErrNoRDMA, errNoReply, err)
}

// readFrame reads a Request, or a Reply if reply is set. It returns io.EOF when the peer
// closed the connection without sending an octet.
func readFrame(nc net.Conn, reply bool) (wire.Frame, error) {
	var b [wire.FrameLen + wire.MaxPrivate]byte
	n, err := io.ReadFull(nc, b[:wire.FrameLen])
	if p := protocol.Of(b[:n]); p != "" && p != protocol.MPA {
		return wire.Frame{}, fmt.Errorf("%w: it speaks %s", fabric.ErrNoRDMA, p)
	}
	if err != nil {
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
		return f, &wire.FrameError{Reason: "a Reply instead of a Request"}
	}
	if _, err := io.ReadFull(nc, b[wire.FrameLen:wire.FrameLen+n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	return f, f.ParsePrivate(append([]byte(nil), b[wire.FrameLen:wire.FrameLen+n]...))
}

// checkRequest returns the error of a Request that cannot be answered.
func checkRequest(f wire.Frame) error {
	switch {
	case f.Revision < 1 || f.Revision > 2:
		// Revision 0 implies versions 0 of DDP and RDMAP.
		return &wire.FrameError{Reason: fmt.Sprintf("revision %d", f.Revision)}
	case f.Revision == 1 && f.Flags&wire.FlagEnhanced != 0:
		return &wire.FrameError{Reason: "S in revision 1"}
	}
	return nil
}

// answer returns the Reply to the Request f, and the parameters that it agrees to. It
// sets each flag by a rule and copies none. RFC 6581 Section 9.
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
		// Set only one bit, and prefer a bit that the peer offered: an adapter that compares
		// for equality would otherwise close the connection.
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

// config returns the configuration of the qp.
func (p *Provider) config(a agreed, o fabric.ConnOptions) qpConfig {
	return qpConfig{
		crc: a.crc, markers: a.markers,
		ird: a.ird, ord: a.ord,
		receives: int32(o.Receives), sends: int32(o.Sends), handlesN: o.Handles,
		limits: p.limits, pool: &p.batches, inPlace: o.InPlace, take: o.Take,
	}
}
