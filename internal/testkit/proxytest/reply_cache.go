package proxytest

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A ReplyCache is a server of NFSv3 that makes and removes directories in one directory, behind a
// duplicate request cache that knows a Call by what Linux's knfsd compares (fs/nfsd/nfscache.c).
// It forgets nothing. It is safe for concurrent use.
type ReplyCache struct {
	mu       sync.Mutex
	replies  map[cachedCall]uint32 // statuses
	dirs     map[string]bool
	executed int
}

// A cachedCall is what the cache knows a Call by. The credential and the program are not in it.
type cachedCall struct {
	xid, version, procedure uint32
	rdma                    bool           // the transport
	from                    netip.AddrPort // without the port over RDMA
	length                  int            // of the arguments, as is sum
	sum                     uint32         // of the first 256 octets
}

// The statuses that a ReplyCache answers: RFC 1813 Section 2.6.
const (
	StatusOK     = 0
	StatusNoEnt  = 2
	StatusExists = 17
)

// Procedures of NFSv3.
const (
	procedureMkdir = 9
	procedureRmdir = 13
)

// NewReplyCache makes a server without directories.
func NewReplyCache() *ReplyCache {
	return &ReplyCache{replies: make(map[cachedCall]uint32), dirs: make(map[string]bool)}
}

// Serve executes the Call c of a client at from, or finds that it has executed it, and returns the status.
func (s *ReplyCache) Serve(c *oncrpc.Call, rdma bool, from netip.AddrPort) uint32 {
	if rdma {
		from = netip.AddrPortFrom(from.Addr(), 0)
	}
	args := c.Message[c.Args:]
	key := cachedCall{c.XID, c.Version, c.Procedure, rdma, from, len(args), sum(args[:min(len(args), 256)])}
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := s.replies[key]
	if !ok {
		status = s.execute(c)
		s.replies[key] = status
		s.executed++
	}
	return status
}

// execute makes or removes a directory. s.mu is held.
func (s *ReplyCache) execute(c *oncrpc.Call) uint32 {
	x := xdr.NewCursor(c.Message, c.Args)
	x.Opaque()
	at, n := x.Opaque()
	name := string(c.Message[at : at+n])
	has := s.dirs[name]
	s.dirs[name] = c.Procedure == procedureMkdir
	switch {
	case has && c.Procedure == procedureMkdir:
		return StatusExists
	case !has && c.Procedure == procedureRmdir:
		return StatusNoEnt
	}
	return StatusOK
}

// Clone returns a server that has done the same.
func (s *ReplyCache) Clone() *ReplyCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &ReplyCache{replies: maps.Clone(s.replies), dirs: maps.Clone(s.dirs), executed: s.executed}
}

// Has reports whether the directory name is there.
func (s *ReplyCache) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirs[name]
}

// Executed is how many Calls were executed.
func (s *ReplyCache) Executed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.executed
}

// OverTCP makes a TCPServer execute MKDIR and RMDIR in s.
func (s *ReplyCache) OverTCP() Behaviour {
	return Behaviour{InterceptTCP: func(c *oncrpc.Call, from *TCPConn) ([]byte, bool) {
		return s.answer(c, false, netip.MustParseAddrPort(from.RemoteAddr().String()))
	}}
}

// OverRDMA makes an RDMAServer execute MKDIR and RMDIR in s. All that connect to it are at one address.
func (s *ReplyCache) OverRDMA() Behaviour {
	return Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		return s.answer(c, true, netip.AddrPort{})
	}}
}

func (s *ReplyCache) answer(c *oncrpc.Call, rdma bool, from netip.AddrPort) (reply []byte, taken bool) {
	if c.Program != oncrpc.ProgramNFS || c.Version != 3 || c.Procedure != procedureMkdir && c.Procedure != procedureRmdir {
		return nil, false
	}
	status := s.Serve(c, rdma, from)
	b := testkit.Words(c.XID, 1, 0, 0, 0, 0, status)
	if status == StatusOK && c.Procedure == procedureMkdir {
		b = testkit.AppendWords(b, 0, 0) // neither the handle nor the attributes of the directory
	}
	return testkit.AppendWords(b, 0, 0), true
}

// Status is the status in m, the Reply to a Call of NFSv3.
func Status(m []byte) uint32 { return binary.BigEndian.Uint32(m[24:]) }

// sum adds up the words of b as csum_partial does: what carries comes back at the other end.
func sum(b []byte) uint32 {
	n := uint64(0)
	for ; len(b) >= 4; b = b[4:] {
		n += uint64(binary.LittleEndian.Uint32(b))
	}
	return uint32(n) + uint32(n>>32)
}

// RmdirCall is the NFSv3 RMDIR of a directory that [MkdirCall] has made.
func RmdirCall(xid uint32, name string) []byte {
	b := CallHeader(nil, xid, oncrpc.ProgramNFS, 3, procedureRmdir)
	b = testkit.AppendOpaque(b, handle)
	return testkit.AppendOpaque(b, []byte(name))
}
