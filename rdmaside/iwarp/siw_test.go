//go:build lab

package iwarp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Interoperation with Linux siw: a guest that serves NFS over RDMA with siw.ko.
// RDMABRIDGE_SIW is its HOST:PORT for NFS/RDMA, RDMABRIDGE_SIW_MOUNT that of
// mountd over TCP; /export is exported.

func siw(t testing.TB) string {
	addr := os.Getenv("RDMABRIDGE_SIW")
	if addr == "" {
		t.Skip("needs a guest with siw: TestLab/siw in internal/lab boots one and sets RDMABRIDGE_SIW=HOST:PORT")
	}
	return addr
}

func be32(v ...uint32) (b []byte) {
	for _, x := range v {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

func opaque(b []byte) []byte {
	return append(append(be32(uint32(len(b))), b...), make([]byte, -len(b)&3)...)
}

func authSys() []byte {
	cred := append(append(be32(0), opaque([]byte("probe"))...), be32(0, 0, 0)...)
	return append(append(be32(1), opaque(cred)...), be32(0, 0)...)
}

func rpcCall(xid, prog, vers, proc uint32, cred, body []byte) []byte {
	return append(append(be32(xid, 0, 2, prog, vers, proc), cred...), body...)
}

// rdmaMsg is an RDMA_MSG header with at most one Read and one Write chunk.
func rdmaMsg(xid uint32, pos uint32, read, write *fabric.Region) []byte {
	b := be32(xid, 1, 32, 0)
	if read != nil {
		b = append(b, be32(1, pos, uint32(read.Handle), read.Length)...)
		b = binary.BigEndian.AppendUint64(b, read.Offset)
	}
	b = append(b, be32(0)...)
	if write != nil {
		b = append(b, be32(1, 1, uint32(write.Handle), write.Length)...)
		b = binary.BigEndian.AppendUint64(b, write.Offset)
	}
	return append(b, be32(0, 0)...)
}

// A siwClient calls one procedure at a time.
type siwClient struct {
	*user
	bufs [][]byte
	id   uint64
	next uint64
}

func dialSIW(t testing.TB, o Options, remoteInvalidation byte) *siwClient {
	c := &siwClient{user: newUser(t, newLoop(t)), id: 1000}
	c.bufs = c.receives(8, 4096)
	_, err := newProvider(o).Dial(context.Background(), c.loop, siw(t), fabric.ConnOptions{
		PrivateData: append(be32(0xf6ab0e18), 1, remoteInvalidation, 3, 3), IRD: 16,
	}, c.user)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// call sends a message and returns the RPC reply and the completion.
func (c *siwClient) call(header, msg []byte) ([]byte, fabric.Completion) {
	c.t.Helper()
	c.id++
	id := c.id
	c.do(func(fc fabric.Conn) {
		if err := fc.PostSend(id, fabric.Send{Parts: [][]byte{header, msg}}); err != nil {
			c.t.Error(err)
		}
		fc.Flush()
	})
	c.good(id)
	n := c.next%8 + 1
	c.next++
	comp := c.good(n)
	reply := append([]byte(nil), c.bufs[n-1][:comp.Bytes]...)
	c.do(func(fc fabric.Conn) {
		if err := fc.PostReceive(n, c.bufs[n-1]); err != nil {
			c.t.Error(err)
		}
	})
	return reply, comp
}

func (c *siwClient) close() {
	c.do(func(fc fabric.Conn) { fc.Close(nil) })
	if err := c.ended(); err != nil {
		c.t.Errorf("orderly close: %v", err)
	}
}

func TestSIWNull(t *testing.T) {
	for _, o := range []Options{{}, {CRCOff: true}} {
		for range 20 {
			c := dialSIW(t, o, 0)
			for xid := range uint32(20) {
				r, _ := c.call(rdmaMsg(xid, 0, nil, nil), rpcCall(xid, 100003, 3, 0, be32(0, 0, 0, 0), nil))
				if want := be32(xid, 1, 0, 0, 0, 0); len(r) < 28+24 || !bytes.Equal(r[28:52], want) {
					t.Fatalf("reply %x", r)
				}
			}
			c.close()
		}
	}
}

// siwRoot asks mountd for the file handle of /export.
func siwRoot(t testing.TB) []byte {
	addr := os.Getenv("RDMABRIDGE_SIW_MOUNT")
	if addr == "" {
		t.Skip("set RDMABRIDGE_SIW_MOUNT=HOST:PORT")
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	msg := rpcCall(7, 100005, 3, 1, authSys(), opaque([]byte("/export")))
	if _, err := nc.Write(append(be32(0x80000000|uint32(len(msg))), msg...)); err != nil {
		t.Fatal(err)
	}
	var h [4]byte
	if _, err := io.ReadFull(nc, h[:]); err != nil {
		t.Fatal(err)
	}
	r := make([]byte, binary.BigEndian.Uint32(h[:])&0x7fffffff)
	if _, err := io.ReadFull(nc, r); err != nil {
		t.Fatal(err)
	}
	if s := binary.BigEndian.Uint32(r[24:]); s != 0 {
		t.Fatalf("mount: status %d", s)
	}
	n := binary.BigEndian.Uint32(r[28:])
	return r[32 : 32+n]
}

// handle looks name up, or creates it.
func (c *siwClient) handle(root []byte, name string, create bool) []byte {
	c.t.Helper()
	body := append(opaque(root), opaque([]byte(name))...)
	proc := uint32(3)
	if create {
		proc = 8
		body = append(body, be32(0, 0, 0, 0, 0, 0, 0)...)
	}
	xid := rand.Uint32()
	r, _ := c.call(rdmaMsg(xid, 0, nil, nil), rpcCall(xid, 100003, 3, proc, authSys(), body))
	d := r[28:]
	if s := binary.BigEndian.Uint32(d[24:]); s != 0 {
		c.t.Fatalf("%s: status %d", name, s)
	}
	d = d[28:]
	if create {
		d = d[4:] // handle follows
	}
	return d[4 : 4+binary.BigEndian.Uint32(d)]
}

// TestSIWChunks writes a file through Read chunks and reads it back through Write
// chunks, CRC on and off, with and without remote invalidation.
func TestSIWChunks(t *testing.T) {
	for _, inv := range []byte{0, 1} {
		for _, crcOff := range []bool{false, true} {
			for _, pol := range []FPDUPolicy{FPDUMSS, FPDUMax} {
				for _, size := range []int{1, 4096, 65536, 262144, 1 << 20} {
					name := fmt.Sprintf("inv=%d/crcoff=%v/fpdu=%d/%d", inv, crcOff, pol, size)
					t.Run(name, func(t *testing.T) { siwChunks(t, Options{CRCOff: crcOff, FPDU: pol}, inv, size) })
				}
			}
		}
	}
}

func siwChunks(t *testing.T, o Options, inv byte, size int) {
	c := dialSIW(t, o, inv)
	defer c.close()
	root := siwRoot(t)
	c.handle(root, "iwarp-test", true)
	fh := c.handle(root, "iwarp-test", false)
	data := testkit.Pattern(size, byte(size>>8)+inv)
	reg := c.register(data, fabric.RemoteRead)
	xid := rand.Uint32() // knfsd's duplicate request cache sees one address
	head := rpcCall(xid, 100003, 3, 7, authSys(), append(opaque(fh), be32(0, 0, uint32(size), 2, uint32(size))...))
	r, comp := c.call(rdmaMsg(xid, uint32(len(head)), &reg, nil), head)
	if s := binary.BigEndian.Uint32(r[28+24:]); s != 0 {
		t.Fatalf("write: status %d", s)
	}
	if inv == 1 && comp.Invalidated != reg.Handle {
		t.Errorf("invalidated %#x, want %#x", comp.Invalidated, reg.Handle)
	}
	c.do(func(fc fabric.Conn) { fc.Invalidate(0, reg.Handle) })

	got := make([]byte, size)
	reg = c.register(got, fabric.RemoteWrite)
	xid++
	_, _ = c.call(rdmaMsg(xid, 0, nil, &reg), rpcCall(xid, 100003, 3, 6, authSys(), append(opaque(fh), be32(0, 0, uint32(size))...)))
	c.do(func(fc fabric.Conn) { fc.Invalidate(0, reg.Handle) })
	if sha256.Sum256(got) != sha256.Sum256(data) {
		wantBytes(t, "read back", got, data)
	}
}

// TestSIWReject checks that siw returns values that it cannot use, and rejects IRD 0.
func TestSIWReject(t *testing.T) {
	addr := siw(t)
	u := newUser(t, newLoop(t))
	u.receives(1, 4096)
	_, err := newProvider(Options{}).Dial(context.Background(), u.loop, addr, fabric.ConnOptions{IRD: -1}, u)
	if err == nil || !strings.Contains(err.Error(), "rejected") {
		t.Fatalf("err = %v", err)
	}
}

// TestSIWInitiator serves rping: siw is the MPA Initiator. RDMABRIDGE_SIW_RPING is
// where to listen; the guest runs
//
//	rping -c -a 10.0.2.2 -p PORT -C 10 -S 4096 -V
//
// for each kind of Reply, in the order of the table, within a minute.
func TestSIWInitiator(t *testing.T) {
	addr := os.Getenv("RDMABRIDGE_SIW_RPING")
	if addr == "" {
		t.Skip("needs a guest with siw that runs rping: set RDMABRIDGE_SIW_RPING=HOST:PORT")
	}
	for _, o := range []Options{{}, {CRCOff: true}, {FPDU: FPDUMax}} {
		t.Run(fmt.Sprintf("crcoff=%v,fpdu=%d", o.CRCOff, o.FPDU), func(t *testing.T) {
			s := &pingServer{t: t, done: make(chan error, 1)}
			loop := newLoop(t)
			l, err := newProvider(o).Listen(addr, withLimits(fabric.ListenOptions{Refused: func(peer netip.AddrPort, reason string, err error) {
				t.Errorf("%v refused: %s: %v", peer, reason, err)
			}}), func(in fabric.Incoming) {
				if _, err := in.Accept(context.Background(), loop, fabric.ConnOptions{IRD: 8, ORD: 8}, s); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			select {
			case err := <-s.done:
				t.Logf("%d pings, then %v", s.pings, err)
			case <-time.After(time.Minute):
				t.Fatal("no rping connected within a minute")
			}
			if s.pings != 10 {
				t.Errorf("%d pings", s.pings)
			}
		})
	}
}

// A pingServer is rping -s.
type pingServer struct {
	t     *testing.T
	c     fabric.Conn
	recv  [4][]byte
	data  []byte
	write bool // the next message names the sink
	pings int
	done  chan error
}

func (s *pingServer) Setup(c fabric.Conn) error {
	s.c = c
	for i := range s.recv {
		s.recv[i] = make([]byte, 64)
		if err := c.PostReceive(uint64(i), s.recv[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *pingServer) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Err != nil {
			continue
		}
		switch c.Op {
		case fabric.OpRead:
			_ = s.c.PostSend(0, fabric.Send{Parts: [][]byte{make([]byte, 16)}})
		case fabric.OpReceive:
			b := s.recv[c.ID]
			r := fabric.Region{
				Offset: binary.BigEndian.Uint64(b), Handle: fabric.Handle(binary.BigEndian.Uint32(b[8:])),
				Length: binary.BigEndian.Uint32(b[12:]),
			}
			if c.Bytes != 16 || r.Length > 1<<20 {
				s.t.Errorf("message % x", b[:c.Bytes])
				continue
			}
			if s.write {
				_ = s.c.PostWrite(0, fabric.Write{Parts: [][]byte{s.data}, To: r})
				_ = s.c.PostSend(0, fabric.Send{Parts: [][]byte{make([]byte, 16)}})
				s.pings++
			} else {
				s.data = make([]byte, r.Length)
				if err := s.c.PostRead(100, fabric.Read{Into: s.data, From: r}); err != nil {
					s.t.Error(err)
				}
			}
			s.write = !s.write
			_ = s.c.PostReceive(c.ID, b)
		}
	}
}

func (s *pingServer) Closed(err error) { s.done <- err }
