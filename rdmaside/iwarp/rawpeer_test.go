package iwarp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A rawPeer speaks frames over a socket, rightly or wrongly.
type rawPeer struct {
	t   testing.TB
	nc  net.Conn
	crc bool
	msn [3]uint32 // next, by queue
}

func newRaw(t testing.TB, nc net.Conn) *rawPeer {
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(5 * patience)) // of all that the peer does
	return &rawPeer{t: t, nc: nc, crc: true, msn: [3]uint32{1, 1, 1}}
}

func rawDial(t testing.TB, addr string) *rawPeer {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, nc)
}

func (r *rawPeer) write(b []byte) {
	r.t.Helper()
	if _, err := r.nc.Write(b); err != nil {
		r.t.Fatalf("write: %v", err)
	}
}

// request sends a Request and returns the Reply.
func (r *rawPeer) request(f wire.Frame) (wire.Frame, error) {
	r.write(f.Append(nil))
	g, err := readFrame(r.nc, true)
	r.crc = g.Flags&wire.FlagCRC != 0
	return g, err
}

// plain is the Request of an ordinary Initiator.
func plain() wire.Frame {
	return wire.Frame{Flags: wire.FlagCRC | wire.FlagEnhanced, Revision: 2, Enhanced: wire.Enhanced{IRD: 16, ORD: 16}}
}

// seal completes an FPDU.
func (r *rawPeer) seal(head []byte, payload ...byte) []byte {
	b := append(append([]byte(nil), head...), payload...)
	b = append(b, make([]byte, -len(b)&3)...)
	crc := uint32(0)
	if r.crc {
		crc = wire.Checksum(b)
	}
	return wire.AppendCRC(b, crc)
}

func (r *rawPeer) sendHead(op wire.Opcode, last bool, inv, mo uint32, n int) []byte {
	q := op.Queue()
	h := wire.AppendUntagged(nil, op, last, inv, r.msn[q], mo, n)
	if last {
		r.msn[q]++
	}
	return h
}

// send sends a Send of one segment.
func (r *rawPeer) send(p ...byte) {
	r.t.Helper()
	r.write(r.seal(r.sendHead(wire.OpSend, true, 0, 0, len(p)), p...))
}

func (r *rawPeer) sendInv(stag uint32, p ...byte) {
	r.t.Helper()
	r.write(r.seal(r.sendHead(wire.OpSendInvalidate, true, stag, 0, len(p)), p...))
}

func (r *rawPeer) tagged(op wire.Opcode, last bool, stag uint32, to uint64, p ...byte) []byte {
	return r.seal(wire.AppendTagged(nil, op, last, stag, to, len(p)), p...)
}

func (r *rawPeer) put(stag uint32, to uint64, p ...byte) {
	r.t.Helper()
	r.write(r.tagged(wire.OpWrite, true, stag, to, p...))
}

func (r *rawPeer) read(rd wire.Read) {
	r.t.Helper()
	r.write(r.seal(wire.AppendReadRequest(nil, r.msn[1], rd)))
	r.msn[1]++
}

// A rawFPDU is an FPDU received.
type rawFPDU struct {
	head    []byte // from ULPDU_Length
	payload []byte
}

func (f rawFPDU) op() wire.Opcode { return wire.Control(f.head).Opcode() }

// next reads an FPDU and checks its CRC and pad.
func (r *rawPeer) next() (rawFPDU, error) {
	b := make([]byte, 2, 65600)
	if _, err := io.ReadFull(r.nc, b); err != nil {
		return rawFPDU{}, err
	}
	n := wire.FPDULen(int(b[0])<<8 | int(b[1]))
	b = b[:n]
	if _, err := io.ReadFull(r.nc, b[2:]); err != nil {
		return rawFPDU{}, err
	}
	want := uint32(0)
	if r.crc {
		want = wire.Checksum(b[:n-4])
	}
	if wire.CRC(b[n-4:]) != want {
		r.t.Errorf("CRC of % x is wrong", b[:min(n, 32)])
	}
	h := wire.Control(b).Opcode().HeaderLen()
	end := 2 + wire.Control(b).ULPDULen()
	if end < h {
		r.t.Fatalf("FPDU % x is too short for its opcode", b)
	}
	return rawFPDU{b[:h], b[h:end]}, nil
}

// want reads an FPDU of this opcode.
func (r *rawPeer) want(op wire.Opcode) rawFPDU {
	r.t.Helper()
	for {
		f, err := r.next()
		if err != nil {
			r.t.Fatalf("want %v: %v", op, err)
		}
		if op != wire.OpWrite && f.op() == wire.OpWrite && len(f.payload) == 0 {
			continue // a kick
		}
		if f.op() != op {
			r.t.Fatalf("got %v, want %v: % x", f.op(), op, f.payload[:min(len(f.payload), 32)])
		}
		return f
	}
}

// takeAll reads all input until FIN or RST into memory, where the test reads the FPDUs
// later. It must be quick, because our side does not wait long for a Terminate to be read.
func (r *rawPeer) takeAll() {
	r.t.Helper()
	b, err := io.ReadAll(r.nc)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		r.t.Fatalf("want FIN: %v", err)
	}
	r.nc = &takenConn{r.nc, bytes.NewReader(b)}
}

// A takenConn is a connection whose input was read by takeAll.
type takenConn struct {
	net.Conn
	in *bytes.Reader
}

func (c *takenConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// wantTerminate reads until a Terminate with this code and then FIN.
func (r *rawPeer) wantTerminate(c wire.Code) wire.Terminate {
	r.t.Helper()
	for {
		f, err := r.next()
		if err != nil {
			r.t.Fatalf("want Terminate %v: %v", c, err)
		}
		if f.op() != wire.OpTerminate {
			continue
		}
		t, err := wire.ParseTerminate(f.payload)
		if err != nil || t.Code != c || t.Mirrored {
			r.t.Fatalf("Terminate %v (%v), want %v", t.Code, err, c)
		}
		r.wantEOF()
		return t
	}
}

// wantEOF reads until FIN or RST, and fails on an FPDU.
func (r *rawPeer) wantEOF() {
	r.t.Helper()
	if f, err := r.next(); err == nil {
		r.t.Fatalf("got %v, want FIN", f.op())
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		r.t.Fatalf("want FIN: %v", err)
	}
}

// A rig is our side as MPA Responder and a raw Initiator.
type rig struct {
	*rawPeer
	u    *user
	bufs [][]byte
	p    *Provider
}

type rigOptions struct {
	provider Options
	conn     fabric.ConnOptions
	request  *wire.Frame
	receives int
	size     int
	quiet    bool // do not begin with a zero-length Write
}

// newRig connects. The raw peer has sent a zero-length Write when it returns, so our side
// may send.
func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	if o.receives == 0 {
		o.receives, o.size = 8, 1024
	}
	g := &rig{u: newUser(t, newLoop(t)), p: newProvider(o.provider)}
	g.bufs = g.u.receives(o.receives, o.size)
	addr := listen(t, g.p, fabric.ListenOptions{}, o.conn, func(fabric.Incoming) (loop.Loop, fabric.Handler) { return g.u.loop, g.u })
	g.rawPeer = rawDial(t, addr)
	f := plain()
	if o.request != nil {
		f = *o.request
	}
	if _, err := g.request(f); err != nil {
		t.Fatal(err)
	}
	if !o.quiet {
		g.put(0, 0)
	}
	g.u.wait("Setup", func() bool { return g.u.c != nil })
	if !o.quiet {
		testkit.Eventually(t, "the first FPDU is heard", func() (heard bool) {
			g.u.do(func(c fabric.Conn) { heard = c.(*conn).qp.rx.heard })
			return heard
		})
	}
	return g
}

// killed wants the Terminate c, and our ULP to hear of it with everything flushed.
func (g *rig) killed(c wire.Code) wire.Terminate {
	g.t.Helper()
	term := g.wantTerminate(c)
	err := g.u.ended()
	var te *terminateError
	if !errors.As(err, &te) || te.Code != c || te.Received {
		g.t.Errorf("Closed(%v), want Terminate %v", err, c)
	}
	g.flushed()
	return term
}

// flushed checks that every posted Receive has completed, with ErrFlushed.
func (g *rig) flushed() {
	g.t.Helper()
	g.u.mu.Lock()
	defer g.u.mu.Unlock()
	n := 0
	for _, c := range g.u.cs {
		if c.Op == fabric.OpReceive {
			n++
			if c.Err != nil && !errors.Is(c.Err, fabric.ErrFlushed) {
				g.t.Errorf("completion %+v", c)
			}
		}
	}
	if n < len(g.bufs) {
		g.t.Errorf("%d of %d Receives completed", n, len(g.bufs))
	}
}

// guarded is a buffer with guard octets on both sides.
type guarded struct{ all, buf []byte }

func guard(n int) guarded {
	all := bytes.Repeat([]byte{0xa5}, n+128)
	return guarded{all, all[64 : 64+n : 64+n]}
}

func (g guarded) untouched(t testing.TB) {
	t.Helper()
	for i, b := range g.all {
		if b != 0xa5 {
			t.Fatalf("octet %d of the buffer was written", i-64)
		}
	}
}

// guards checks the guards alone.
func (g guarded) guards(t testing.TB) {
	t.Helper()
	for i, b := range g.all {
		if (i < 64 || i >= len(g.all)-64) && b != 0xa5 {
			t.Fatalf("guard octet %d was written", i-64)
		}
	}
}
