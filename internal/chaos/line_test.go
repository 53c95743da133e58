package chaos

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A line is a client's connection.
type line interface {
	// send sends a Call.
	send(m []byte, most time.Duration) error
	// replies receives the messages that come, except the server's Calls, and is closed
	// at the end.
	replies() <-chan []byte
	// calls receives the server's Calls. One that finds it full is lost.
	calls() <-chan []byte
	// answer sends a Reply to one of them.
	answer(m []byte)
	ended() <-chan struct{}
	// close ends the connection and returns when its goroutines have ended.
	close()
}

var errStuck = errors.New("chaos: the bridge does not read")

// A tcpLine is one over TCP.
type tcpLine struct {
	net.Conn
	kept   bool // the next one has its port
	got    chan []byte
	called chan []byte
	endc   chan struct{}
	stop   chan struct{}
}

func dialTCP(ctx context.Context, addr string, local net.IP) (line, error) {
	return dialTCPFrom(ctx, addr, &net.TCPAddr{IP: local})
}

// dialTCPFrom connects from the port of local, or from any if that is 0.
func dialTCPFrom(ctx context.Context, addr string, local *net.TCPAddr) (line, error) {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: local, Control: proxytest.SharePort}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &tcpLine{Conn: conn, kept: local.Port != 0, got: make(chan []byte, 64), called: make(chan []byte, 64), endc: make(chan struct{}), stop: make(chan struct{})}
	go l.read()
	return l, nil
}

func (l *tcpLine) read() {
	defer close(l.endc)
	call := func(m []byte) (more bool) {
		select {
		case l.called <- m:
		default:
		}
		return true
	}
	reply := func(m []byte) (more bool) {
		select {
		case l.got <- m:
			return true
		case <-l.stop:
			return false
		}
	}
	_ = proxytest.ReadMessages(bufferedReader(l.Conn), call, reply) // the client sees ended
}

func (l *tcpLine) send(m []byte, most time.Duration) error {
	_ = l.SetWriteDeadline(time.Now().Add(most))
	err := testkit.WriteRecord(l.Conn, m)
	if timedOut(err) {
		return errStuck
	}
	return err
}

func (l *tcpLine) replies() <-chan []byte { return l.got }
func (l *tcpLine) calls() <-chan []byte   { return l.called }

// answer is part of line. It ignores errors: read sees the end of the connection.
func (l *tcpLine) answer(m []byte) { _ = l.send(m, 5*time.Second) }

func (l *tcpLine) ended() <-chan struct{} { return l.endc }

func (l *tcpLine) close() {
	close(l.stop)
	if l.kept {
		_ = l.Conn.(*net.TCPConn).SetLinger(0) // or the kernel keeps the port for a minute
	}
	l.Conn.Close()
	<-l.endc
}

// An rdmaLine is one over RPC-over-RDMA.
type rdmaLine struct {
	c    *proxytest.RDMAClient
	got  chan []byte
	endc chan struct{}
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

func newRDMALine(c *proxytest.RDMAClient) *rdmaLine {
	return &rdmaLine{c: c, got: make(chan []byte, 64), endc: make(chan struct{}), stop: make(chan struct{})}
}

func (l *rdmaLine) send(m []byte, _ time.Duration) error {
	ch, err := l.c.Go(m)
	if err != nil {
		return err
	}
	l.wg.Go(func() {
		r, ok := <-ch
		if !ok {
			l.once.Do(func() { close(l.endc) })
			return
		}
		select {
		case l.got <- r:
		case <-l.stop:
		}
	})
	return nil
}

func (l *rdmaLine) replies() <-chan []byte { return l.got }
func (l *rdmaLine) calls() <-chan []byte   { return l.c.Calls }

// answer is part of line. A Reply that answers no Call cannot be sent.
func (l *rdmaLine) answer(m []byte) { _ = l.c.Send(m) }

func (l *rdmaLine) ended() <-chan struct{} { return l.endc }

func (l *rdmaLine) close() {
	close(l.stop)
	_ = l.c.Close()
	l.wg.Wait() // the end of the connection ends every Call
}
