package iwarp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// TestPeerFIN checks the error after a FIN between FPDUs, and after one inside an FPDU.
func TestPeerFIN(t *testing.T) {
	for _, inside := range []bool{false, true} {
		g := newRig(t, rigOptions{})
		want := io.EOF
		if inside {
			want = io.ErrUnexpectedEOF
			g.write(g.seal(g.sendHead(wire.OpSend, true, 0, 0, 9), make([]byte, 9)...)[:25])
		}
		_ = g.nc.(*net.TCPConn).CloseWrite()
		if err := g.u.ended(); !errors.Is(err, want) {
			t.Errorf("Closed(%v), want %v", err, want)
		}
		g.flushed()
		g.wantEOF()
	}
}

// TestPeerRST flushes everything.
func TestPeerRST(t *testing.T) {
	g := newRig(t, rigOptions{})
	g.send(1)
	g.u.good(1)
	_ = g.nc.(*net.TCPConn).SetLinger(0)
	g.nc.Close()
	if err := g.u.ended(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Closed(%v)", err)
	}
	g.flushed2(7)
}

// TestTerminateReceived in the RFC's form and in siw's.
func TestTerminateReceived(t *testing.T) {
	for _, mirrored := range []bool{false, true} {
		g := newRig(t, rigOptions{})
		term := wire.Terminate{Code: wire.CodeTaggedSTag, Mirrored: mirrored, HasLen: true, SegLen: 18, DDP: make([]byte, 18)}
		p := term.Append(nil)
		g.write(g.seal(wire.AppendUntagged(nil, wire.OpTerminate, true, 0, 1, 0, len(p)), p...))
		var te *terminateError
		if err := g.u.ended(); !errors.As(err, &te) || !te.Received || te.Code != wire.CodeTaggedSTag || !bytes.Equal(te.Raw, p) {
			t.Errorf("Closed(%v)", err)
		}
		g.flushed()
		g.wantEOF() // FIN, and no answer
	}
}

// TestTerminateBehindHalfAnFPDU checks that a Terminate follows the FPDU that is half
// written, whose rest is written from a copy, and replaces the FPDUs behind that.
func TestTerminateBehindHalfAnFPDU(t *testing.T) {
	g := newRig(t, rigOptions{})
	data := bytes.Repeat([]byte{7}, 32<<20)
	g.u.do(func(c fabric.Conn) {
		if err := c.PostWrite(50, fabric.Write{Parts: [][]byte{data}, To: fabric.Region{Handle: 1}}); err != nil {
			t.Error(err)
		}
		c.Flush()
		if !c.(*conn).blocked {
			t.Error("the socket took it all")
		}
	})
	g.write([]byte{0, 14, 0xc2, 0x40}) // DDP version 2
	g.write(make([]byte, 16))          // the CRC is wrong too, and is reported instead
	g.u.completion(50)
	clear(data) // the Work Request is flushed, so the qp no longer owns data
	g.takeAll()
	n := 0
	for {
		f, err := g.next()
		if err != nil {
			t.Fatal(err)
		}
		if f.op() == wire.OpTerminate {
			if term, _ := wire.ParseTerminate(f.payload); term.Code != wire.CodeCRC {
				t.Errorf("%v", term.Code)
			}
			break
		}
		for _, b := range f.payload {
			if b != 7 {
				t.Fatal("memory was read after its completion")
			}
		}
		n += len(f.payload)
	}
	if n == 0 || n >= len(data) {
		t.Errorf("%d octets of the Write came", n)
	}
	g.wantEOF()
}

// TestTerminateStuck checks that a peer that reads nothing gets RST, and that the ULP
// does not wait for that.
func TestTerminateStuck(t *testing.T) {
	g := newRig(t, rigOptions{})
	var gone bool
	g.u.closed = func() { gone = g.u.c.(*conn).gone }
	data := make([]byte, 32<<20)
	g.u.do(func(c fabric.Conn) {
		_ = c.PostWrite(50, fabric.Write{Parts: [][]byte{data}, To: fabric.Region{Handle: 1}})
		c.Flush()
	})
	start := time.Now()
	g.send(make([]byte, 2000)...) // too long
	g.u.ended()
	if gone {
		t.Error("Closed came behind the end of the socket")
	}
	testkit.Eventually(t, "the socket is gone", func() bool { return g.p.limits.conns.Load() == 0 })
	if d := time.Since(start); d < terminateWrite {
		t.Errorf("the socket was kept for %v", d)
	}
}

// TestDrainBehindTerminate checks that input behind an error is read and dropped, so that
// no RST overtakes the Terminate.
func TestDrainBehindTerminate(t *testing.T) {
	g := newRig(t, rigOptions{})
	mem := guard(1 << 16)
	reg := g.u.register(mem.buf, fabric.RemoteWrite)
	b := g.tagged(wire.OpWrite, true, uint32(reg.Handle)+1, reg.Offset, 1)
	good := g.tagged(wire.OpWrite, true, uint32(reg.Handle), reg.Offset, make([]byte, 60000)...)
	for range 50 {
		b = append(b, good...)
	}
	began := time.Now()
	g.write(b)
	testkit.Eventually(t, "our side's TCP has all octets, or has reset the connection", func() bool {
		return testkit.Unacknowledged(g.nc.(*net.TCPConn)) == 0
	})
	if _, err := g.nc.Write([]byte{0}); err != nil && time.Since(began) < terminateDrain {
		t.Errorf("the connection is reset: %v", err)
	}
	g.killed(wire.CodeTaggedSTag)
	mem.untouched(t)
}

// TestOrderlyClose checks that the peer gets all posted messages, then FIN, and that the
// ULP gets Closed(nil) after the peer's FIN, or after the deadline.
func TestOrderlyClose(t *testing.T) {
	for _, answer := range []bool{true, false} {
		t.Run(fmt.Sprint(answer), func(t *testing.T) {
			var o Options
			if !answer {
				o.CloseTimeout = 300 * time.Millisecond
			}
			g := newRig(t, rigOptions{provider: o})
			g.send(1)
			g.u.good(1)
			start := time.Now()
			g.u.do(func(c fabric.Conn) {
				for i := range 3 {
					_ = c.PostSend(uint64(50+i), fabric.Send{Parts: [][]byte{{byte(i)}}})
				}
				c.Close(nil)
			})
			for i := range 3 {
				if f := g.want(wire.OpSend); f.payload[0] != byte(i) {
					t.Errorf("Send %d: %x", i, f.payload)
				}
				g.u.good(uint64(50 + i))
			}
			g.wantEOF()
			// Dropped: too late. Without an answer the deadline may have come first.
			if _, err := g.nc.Write(g.seal(g.sendHead(wire.OpSend, true, 0, 0, 1), 2)); err != nil && answer {
				t.Errorf("write: %v", err)
			}
			if answer {
				g.nc.Close()
			}
			if err := g.u.ended(); err != nil {
				t.Errorf("Closed(%v)", err)
			}
			if d := time.Since(start); !answer && d < o.CloseTimeout {
				t.Errorf("after %v", d)
			}
			g.flushed2(7)
		})
	}
}

// TestCloseTimeout checks an orderly close that cannot complete.
func TestCloseTimeout(t *testing.T) {
	g := newRig(t, rigOptions{provider: Options{CloseTimeout: 200 * time.Millisecond}})
	data := make([]byte, 32<<20)
	g.u.do(func(c fabric.Conn) {
		_ = c.PostWrite(50, fabric.Write{Parts: [][]byte{data}, To: fabric.Region{Handle: 1}})
		c.Close(nil)
	})
	if err := g.u.ended(); !errors.Is(err, errCloseTimeout) {
		t.Errorf("Closed(%v), want %v", err, errCloseTimeout)
	}
	if c := g.u.completion(50); !errors.Is(c.Err, fabric.ErrFlushed) {
		t.Errorf("%+v", c)
	}
}

// TestCloseWaitsForReads checks that a Read posted before an orderly close completes.
func TestCloseWaitsForReads(t *testing.T) {
	g, mem, r := readRig(t, 100, rigOptions{})
	g.u.do(func(c fabric.Conn) { c.Close(nil) })
	data := testkit.Pattern(100, 1)
	g.write(g.tagged(wire.OpReadResponse, true, r.SinkSTag(), r.SinkTO(), data...))
	g.u.good(77)
	wantBytes(t, "Read", mem.buf, data)
	g.wantEOF()
	g.nc.Close()
	if err := g.u.ended(); err != nil {
		t.Errorf("Closed(%v)", err)
	}
}

// TestCloseBeforeFirst checks that an MPA responder that got no FPDU sends nothing but
// FIN.
func TestCloseBeforeFirst(t *testing.T) {
	g := newRig(t, rigOptions{quiet: true})
	g.u.do(func(c fabric.Conn) {
		_ = c.PostSend(50, fabric.Send{})
		c.Close(nil)
	})
	g.wantEOF()
	g.nc.Close()
	if err := g.u.ended(); err != nil {
		t.Errorf("Closed(%v)", err)
	}
	if c := g.u.completion(50); !errors.Is(c.Err, fabric.ErrFlushed) {
		t.Errorf("%+v", c)
	}
}

// TestTurns checks that Responses and own messages share the stream while both wait.
func TestTurns(t *testing.T) {
	q, _ := bareQP(qpConfig{receives: 4, sends: 1000, handlesN: 4, ird: 32})
	mem := make([]byte, 1<<20)
	reg, err := q.register(mem, fabric.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	r := &rawPeer{t: t, msn: [3]uint32{1, 1, 1}}
	for range 8 {
		q.input(r.seal(wire.AppendReadRequest(nil, r.msn[1], wire.Read{Size: 1 << 20, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})))
		r.msn[1]++
	}
	for range 64 {
		if err := q.post(0, wire.OpSend, [][]byte{mem[:128<<10]}, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	var order []byte
	var stream []byte
	for out := q.output(); len(out) > 0; out = q.output() {
		n := 0
		for _, p := range out {
			stream = append(stream, p...)
			n += len(p)
		}
		q.wrote(n)
	}
	for len(stream) > 0 {
		h := wire.Control(stream)
		if h.Last() {
			order = append(order, "WQRSIsi"[h.Opcode()])
		}
		stream = stream[wire.FPDULen(h.ULPDULen()):]
	}
	if want := []byte("SSRSSRSSRSSRSSRSSRSSRSSR"); !bytes.HasPrefix(order, want) || len(order) != 72 {
		t.Errorf("%s, want %s...", order, want)
	}
}
