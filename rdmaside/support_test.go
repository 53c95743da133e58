package rdmaside

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }

// RPC messages of NFS version 3, RFC 1813.

const (
	procNull     = 0
	procGetAttr  = 1
	procRead     = 6
	procWrite    = 7
	procReaddir  = 16
	procPathconf = 20
)

func words(ws ...uint32) (b []byte) {
	for _, w := range ws {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

func opaque(data []byte) []byte {
	b := append(words(uint32(len(data))), data...)
	return append(b, make([]byte, -len(data)&3)...)
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed | 1
	}
	return b
}

var handle32 = opaque(pattern(32, 1))

// nfsCall returns a Call with AUTH_NONE.
func nfsCall(xid, proc uint32, args ...[]byte) []byte {
	b := words(xid, 0, 2, oncrpc.ProgramNFS, 3, proc, 0, 0, 0, 0)
	return append(b, bytes.Join(args, nil)...)
}

func getAttrCall(xid uint32) []byte { return nfsCall(xid, procGetAttr, handle32) }

func readCall(xid uint32, count int) []byte {
	return nfsCall(xid, procRead, handle32, words(0, 0, uint32(count)))
}

func writeCall(xid uint32, data []byte) []byte {
	return nfsCall(xid, procWrite, handle32, words(0, 0, uint32(len(data)), 2), opaque(data))
}

// opaqueCall returns a Call of a program without a binding.
func opaqueCall(xid uint32, n int) []byte {
	b := words(xid, 0, 2, 400100, 1, 5, 0, 0, 0, 0)
	return append(b, pattern(n, byte(xid))...)
}

func accepted(xid uint32, results ...[]byte) []byte {
	return append(words(xid, 1, 0, 0, 0, 0), bytes.Join(results, nil)...)
}

func getAttrReply(xid uint32) []byte { return accepted(xid, words(0), pattern(84, byte(xid))) }

// readReply returns the Reply to a READ, and the position of its data.
func readReply(xid uint32, data []byte) (m []byte, pos int) {
	m = accepted(xid, words(0, 1), pattern(84, 9), words(uint32(len(data)), 0, uint32(len(data))))
	pos = len(m)
	m = append(m, data...)
	return append(m, make([]byte, -len(data)&3)...), pos
}

// cut returns m without the n octets of data at pos and their roundup.
func cut(m []byte, pos, n int) []byte {
	return append(append([]byte(nil), m[:pos]...), m[pos+(n+3)&^3:]...)
}

// A bed is the environment of a test with a connection: memory, a provider, and
// loops.
type bed struct {
	t        *testing.T
	arena    *regmem.Arena
	calls    *regmem.Account
	replies  *regmem.Account
	provider *fabrictest.Loopback
	loop     *fabrictest.Loop // of the side under test
	peerLoop *fabrictest.Loop
	leases   []*regmem.Lease
}

func newBed(t *testing.T, replies int64) *bed {
	arena, err := regmem.New(regmem.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return &bed{
		t: t, arena: arena, calls: arena.Account("calls", 24<<20), replies: arena.Account("replies", replies),
		provider: fabrictest.NewLoopback(), loop: fabrictest.NewLoop(), peerLoop: fabrictest.NewLoop(),
	}
}

// lend copies m into arena memory that is released at the end of the test.
func (b *bed) lend(m []byte) []byte {
	b.t.Helper()
	l, err := b.calls.Lease(len(m))
	if err != nil {
		b.t.Fatal(err)
	}
	b.leases = append(b.leases, l)
	copy(l.Bytes(), m)
	return l.Bytes()
}

// strike closes everything and asserts rule B3: all memory is released.
func (b *bed) strike() {
	b.t.Helper()
	b.loop.Stop()
	b.peerLoop.Stop()
	for _, l := range b.leases {
		l.Release()
	}
	if n := b.arena.Outstanding(); n != 0 {
		b.t.Errorf("%d leases outstanding at the end, %d octets", n, b.arena.Used())
		return
	}
	if err := b.arena.Close(); err != nil {
		b.t.Error(err)
	}
}

func newRegistry() *ulb.Registry {
	reg := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(reg)
	return reg
}

// A fakePeer is the other end of a connection. It does what the test says.
type fakePeer struct {
	bed      *bed
	conn     fabric.Conn
	receives int

	mu          sync.Mutex // guards the rest; a leaf
	bufs        map[uint64][]byte
	messages    []fakeMessage
	history     [][]byte // octets of all messages, including those that next has removed
	completions []fabric.Completion
	closed      bool
	closedErr   error
}

type fakeMessage struct {
	octets      []byte
	invalidated fabric.Handle
}

func (p *fakePeer) Setup(c fabric.Conn) error {
	p.conn = c
	p.bufs = make(map[uint64][]byte)
	for i := range p.receives {
		id := uint64(i) + 1
		p.bufs[id] = make([]byte, 16<<10)
		if err := c.PostReceive(id, p.bufs[id]); err != nil {
			return err
		}
	}
	return nil
}

func (p *fakePeer) Completed(cs []fabric.Completion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cs {
		if c.Op != fabric.OpReceive {
			p.completions = append(p.completions, c)
			continue
		}
		if c.Err != nil {
			continue
		}
		m := fakeMessage{bytes.Clone(p.bufs[c.ID][:c.Bytes]), c.Invalidated}
		p.messages = append(p.messages, m)
		p.history = append(p.history, m.octets)
		_ = p.conn.PostReceive(c.ID, p.bufs[c.ID])
	}
}

func (p *fakePeer) Closed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.closedErr = true, err
}

// send sends one message and waits until nothing happens any more.
func (p *fakePeer) send(invalidate fabric.Handle, parts ...[]byte) {
	p.bed.t.Helper()
	fabrictest.Do(p.bed.peerLoop, func() {
		if err := p.conn.PostSend(1<<20, fabric.Send{Parts: parts, Invalidate: invalidate}); err != nil && !errors.Is(err, fabric.ErrClosed) {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
}

// write writes data into s by RDMA Write.
func (p *fakePeer) write(s rpcrdma.Segment, data []byte) {
	p.bed.t.Helper()
	fabrictest.Do(p.bed.peerLoop, func() {
		to := fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}
		if err := p.conn.PostWrite(0, fabric.Write{Parts: [][]byte{data}, To: to}); err != nil {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
}

// read returns the octets of s, which it reads by RDMA Read.
func (p *fakePeer) read(s rpcrdma.Segment) []byte {
	p.bed.t.Helper()
	into := make([]byte, s.Length)
	fabrictest.Do(p.bed.peerLoop, func() {
		from := fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}
		if err := p.conn.PostRead(0, fabric.Read{Into: into, From: from}); err != nil {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
	return into
}

// next removes the oldest message and returns it.
func (p *fakePeer) next() (m fakeMessage, ok bool) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.messages) == 0 {
		return fakeMessage{}, false
	}
	m = p.messages[0]
	p.messages = p.messages[1:]
	return m, true
}

func (p *fakePeer) ended() (bool, error) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed, p.closedErr
}

// A wantedSend is a message of the side under test, decoded.
type wantedSend struct {
	rpcrdma.Header
	octets      []byte
	payload     []byte
	invalidated fabric.Handle
}

// wantSend removes the next message of the side under test and decodes it.
func (p *fakePeer) wantSend(why string) *wantedSend {
	t := p.bed.t
	t.Helper()
	m, ok := p.next()
	if !ok {
		t.Fatalf("nothing was sent; want: %s", why)
	}
	s := &wantedSend{octets: m.octets, invalidated: m.invalidated}
	n, err := s.Decode(m.octets)
	if err != nil {
		t.Fatalf("%s: %v in %x", why, err, m.octets)
	}
	s.payload = m.octets[n:]
	return s
}

// wantIdle asserts that the side under test sends nothing.
func (p *fakePeer) wantIdle(why string) {
	p.bed.t.Helper()
	if m, ok := p.next(); ok {
		p.bed.t.Fatalf("sent %x; want silence: %s", m.octets, why)
	}
}

// header returns a Transport header.
func header(xid, credits uint32, proc rpcrdma.Proc, edit ...func(h *rpcrdma.Header)) []byte {
	var h rpcrdma.Header
	h.Reset(xid, credits, proc)
	for _, f := range edit {
		f(&h)
	}
	return h.Append(nil)
}

func plain(xid, credits uint32) []byte { return rpcrdma.AppendPlain(nil, xid, credits) }

// shortened returns s with another length.
func shortened(s rpcrdma.Segment, n int) rpcrdma.Segment {
	s.Length = uint32(n)
	return s
}

var _ = context.Background

// requesterOptions returns o with values for the settings that it leaves open.
func requesterOptions(o RequesterOptions) RequesterOptions {
	o.Credits = cmp.Or(o.Credits, 128)
	o.CallInline = cmp.Or(o.CallInline, 4096)
	o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
	o.Deadline = cmp.Or(o.Deadline, 60*time.Second)
	return o
}

// responderOptions returns o with values for the settings that it leaves open.
func responderOptions(o ResponderOptions) ResponderOptions {
	o.Credits = cmp.Or(o.Credits, 64)
	o.CallInline = cmp.Or(o.CallInline, 4096)
	o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
	o.MaxCall = cmp.Or(o.MaxCall, 4<<20+64<<10)
	return o
}
