package proxytest

import (
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A TCPServer accepts RPC connections over TCP. [ListenTCP] makes one that answers Calls,
// [ServeTCP] one that leaves its connections to a function.
type TCPServer struct {
	Served
	Behaviour
	l     net.Listener
	serve func(*TCPConn)
	wg    sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	conns  []*TCPConn // in the order in which they came
	closed bool
}

// A TCPConn is one connection of a TCPServer. A server may use it to call its client.
type TCPConn struct {
	*net.TCPConn
	Number int // of the connections of its server, from 1

	wmu sync.Mutex // guards writing
	got chan []byte
}

// ListenTCP starts a server at addr that answers Calls.
func ListenTCP(addr string, b Behaviour) (*TCPServer, error) {
	s := &TCPServer{Behaviour: b}
	s.serve = s.answer
	return s, s.listen(addr)
}

// ServeTCP starts a server at addr that calls serve for each connection, on a goroutine
// of its own, and closes the connection when serve returns.
func ServeTCP(addr string, serve func(*TCPConn)) (*TCPServer, error) {
	s := &TCPServer{serve: serve}
	return s, s.listen(addr)
}

func (s *TCPServer) listen(addr string) (err error) {
	if s.l, err = net.Listen("tcp", addr); err == nil {
		s.wg.Go(s.accept)
	}
	return err
}

// Addr is the address at which the server listens.
func (s *TCPServer) Addr() string { return s.l.Addr().String() }

func (s *TCPServer) accept() {
	for n := 1; ; n++ {
		nc, err := s.l.Accept()
		if err != nil {
			return
		}
		c := &TCPConn{TCPConn: nc.(*net.TCPConn), Number: n, got: make(chan []byte, 1024)}
		s.mu.Lock()
		if s.closed {
			c.Close()
		}
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Go(func() {
			defer s.forget(c)
			defer c.Close()
			s.serve(c)
		})
	}
}

// forget removes c, which has ended.
func (s *TCPServer) forget(c *TCPConn) {
	s.mu.Lock()
	s.conns = slices.DeleteFunc(s.conns, func(x *TCPConn) bool { return x == c })
	s.mu.Unlock()
	close(c.got)
}

// Conns are the connections that are up, in the order in which they came.
func (s *TCPServer) Conns() []*TCPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

// answer answers the Calls of c until it ends, or brings a message that is neither a Call nor a Reply.
func (s *TCPServer) answer(c *TCPConn) {
	first := true
	call := func(m []byte) (more bool) {
		var call oncrpc.Call
		if oncrpc.ParseCall(m, &call) != nil {
			return false
		}
		if first && call.Procedure == 0 {
			first = false
			c.Send(answer(&call)) // the bridge primes connections with a NULL Call, which no test is about
			return true
		}
		first = false
		s.count(call.XID)
		if s.Ends != nil && s.Ends(&call) {
			return false
		}
		reply := s.reply(&call)
		if s.InterceptTCP != nil {
			if r, taken := s.InterceptTCP(&call, c); taken {
				reply = r
			}
		}
		if reply != nil {
			s.schedule(&call, func() { c.Send(reply) }, func(send func()) { send() })
		}
		return true
	}
	reply := func(m []byte) (more bool) {
		if !IsReply(m) {
			return false
		}
		c.got <- m
		return true
	}
	_ = ReadMessages(c, call, reply) // the test that ended the connection knows why
}

// ReadMessages reads records from r. It hands each Call to call and every other message
// to reply, until one of these returns false; then ReadMessages returns nil.
func ReadMessages(r io.Reader, call, reply func(m []byte) (more bool)) error {
	for {
		m, err := testkit.ReadRecord(r)
		if err != nil {
			return err
		}
		to := reply
		if IsCall(m) {
			to = call
		}
		if !to(m) {
			return nil
		}
	}
}

// Send sends one record. It ignores errors: the reading goroutine sees the end of the
// connection.
func (c *TCPConn) Send(m []byte) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_ = testkit.WriteRecord(c.TCPConn, m)
}

// SendRaw sends octets that are any number of records, or none.
func (c *TCPConn) SendRaw(b []byte) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, _ = c.Write(b) // as Send does
}

// Call sends the Call m to the client.
func (c *TCPConn) Call(m []byte, _ uint32) { c.Send(m) }

// Next is the client's next Reply.
func (c *TCPConn) Next(wait time.Duration) ([]byte, error) {
	return next(c.got, wait)
}

// Drop ends the connection.
func (c *TCPConn) Drop(error) { c.Close() }

// DropConnections ends all connections.
func (s *TCPServer) DropConnections() {
	for _, c := range s.Conns() {
		c.Close()
	}
}

// Close ends the server.
func (s *TCPServer) Close() {
	s.l.Close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.DropConnections()
	s.wg.Wait()
}
