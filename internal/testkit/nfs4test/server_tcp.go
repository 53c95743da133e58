package nfs4test

import (
	"bufio"
	"errors"
	"net"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// tcpWindow bounds the callbacks outstanding on a TCP connection. nfsd has no bound but its number
// of clients.
const tcpWindow = 1 << 16

var errNoRPC = errors.New("nfs4test: the message is neither a Call nor a Reply")

// A tcpConn carries the messages of a TCP connection.
type tcpConn struct {
	*net.TCPConn
	mu sync.Mutex // guards writing
}

func (t *tcpConn) reverseCall(m []byte) { go t.send(m) }

// send sends one record. The reading goroutine sees the end of the connection.
func (t *tcpConn) send(m []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = testkit.WriteRecord(t.TCPConn, m)
}

func (t *tcpConn) close(error) { _ = t.TCPConn.Close() }

// ListenTCP listens at addr and returns the address.
func (s *Server) ListenTCP(addr string) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t := &tcpConn{TCPConn: nc.(*net.TCPConn)}
			peer := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
			c := s.open(t, peer.String(), peer.Addr().Unmap(), tcpWindow)
			wg.Go(func() { s.serveTCP(c, t) })
		}
	})
	s.mu.Lock()
	s.listeners = append(s.listeners, func() {
		l.Close()
		s.closeConns(func(c *conn) bool { _, ok := c.t.(*tcpConn); return ok })
		wg.Wait()
	})
	s.mu.Unlock()
	return l.Addr().String(), nil
}

// closeConns closes the connections for which which is true.
func (s *Server) closeConns(which func(*conn) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if which(c) {
			c.t.close(errTooMany)
		}
	}
}

// serveTCP answers the Calls of a connection until it ends.
func (s *Server) serveTCP(c *conn, t *tcpConn) {
	var err error
	defer func() { c.ended(err) }()
	defer t.Close()
	in := bufio.NewReaderSize(t.TCPConn, 64<<10)
	for {
		var m []byte
		if m, err = testkit.ReadRecord(in); err != nil {
			return
		}
		xid, kind, ok := oncrpc.MessageType(m)
		switch {
		case !ok:
			err = errNoRPC
			return
		case kind == oncrpc.TypeReply:
			c.reverseReply(xid, m)
		default:
			var a answer
			if a, err = c.call(m); err != nil {
				return
			}
			a.send(s, t.send)
		}
	}
}
