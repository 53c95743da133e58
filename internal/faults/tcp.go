package faults

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

const sendTimeout = 30 * time.Second // in which a TCP client must read a Reply

// A tcpFront is a client's connection over TCP.
type tcpFront struct {
	s    *session
	conn *net.TCPConn

	mu   sync.Mutex // is held by exclusive
	deaf bool       // it sends nothing more
}

// serveTCP accepts connections until l is closed.
func (s *Server) serveTCP(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			select {
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond): // most likely out of descriptors
			}
			continue
		}
		s.running.Go(func() { s.serveConn(c) })
	}
}

func (s *Server) serveConn(c *net.TCPConn) {
	defer c.Close()
	if !s.admit(c) {
		return
	}
	defer s.gone(c)
	peer := addrOf(c.RemoteAddr())
	if i := s.connects(overTCP, peer); i != nil {
		if i.Fault == refuse {
			_ = c.SetLinger(0)
			return
		}
		if !s.wait(i.wait) {
			return
		}
	}
	f := &tcpFront{conn: c}
	f.s = s.newSession(f, overTCP, peer)
	for {
		m, err := s.readRecord(c)
		if err != nil {
			break
		}
		f.exclusive(func() { f.s.received(m.Bytes(), new(pending)) })
		m.Release()
	}
	f.exclusive(f.s.end)
}

func addrOf(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr().Unmap() }

func (f *tcpFront) exclusive(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *tcpFront) forget(*pending) {}

func (f *tcpFront) close(error) { f.conn.Close() }

func (f *tcpFront) callBack(m *regmem.Lease) {
	defer m.Release()
	f.write(record(m.Bytes()))
}

// record returns b as a record.
func record(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), lastFragment|uint32(len(b))), b...)
}

func (f *tcpFront) write(b []byte) {
	if f.deaf {
		return
	}
	_ = f.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := f.conn.Write(b); err != nil {
		f.conn.Close()
	}
}

// send sends a Reply.
func (f *tcpFront) send(p *pending, m *regmem.Lease) {
	defer m.Release()
	b := record(m.Bytes())
	i := p.fault
	if i == nil {
		f.write(b)
		return
	}
	if k := i.kind.stage; k == atReply && i.Fault != delay && i.Fault != reorder {
		f.s.server.judge.injected(i, &p.incident)
	}
	mark := func(n int) { binary.BigEndian.PutUint32(b, lastFragment|uint32(n)) }
	switch i.Fault {
	case wrongXID:
		b[4] ^= 0x80
	case shortReply:
		b = b[:len(b)-min(i.Octets, len(b)-12)]
		mark(len(b) - 4)
	case longRecord:
		mark(len(b) - 4 + i.Octets)
	case shortRecord:
		mark(max(len(b)-4-i.Octets, 0))
	case corrupt:
		b[corruptAt(len(b), 68)] ^= 1
	case fragments:
		b = fragmented(b[4:], i.Octets)
	case duplicateReply:
		b = append(b, b...)
	case freeze:
		f.s.server.wait(i.wait)
	case closeConn, resetConn:
		b = nil
	case cut:
		b = b[:min(i.Octets, len(b)-1)]
	}
	if b != nil {
		f.write(b)
	}
	switch i.Fault {
	case closeConn:
		f.conn.Close()
	case resetConn:
		f.reset()
	case cut:
		if i.How == "reset" {
			f.reset()
		} else {
			f.conn.Close()
		}
	case halfClose:
		_ = f.conn.CloseWrite()
		f.deaf = true
	}
}

func (f *tcpFront) reset() {
	_ = f.conn.SetLinger(0)
	f.conn.Close()
}

// corruptAt returns the index of the octet to change among n, which is behind skip if there is one.
func corruptAt(n, skip int) int { return max(min(skip, n-1), 0) }

// fragmented returns m as a record of fragments of n octets.
func fragmented(m []byte, n int) (b []byte) {
	for c := range slices.Chunk(m, n) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(c))), c...)
	}
	return binary.BigEndian.AppendUint32(b, lastFragment) // an empty fragment is the last one
}
