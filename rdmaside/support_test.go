package rdmaside

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
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
	arena, err := regmem.New(regmem.Options{Budget: 64 << 20, Poison: true})
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
