package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Schemes of Load.Target, which say how its connections get TLS.
const (
	schemeRPC    = "rpctls://" // with the probe of RFC 9289
	schemeDirect = "tls://"    // from the first octet on, as a proxy that terminates TLS has it
)

// tlsTarget returns the address of target, and how its connections get TLS: not at all if secure is false.
func tlsTarget(target string) (addr string, secure, probe bool) {
	if addr, ok := strings.CutPrefix(target, schemeRPC); ok {
		return addr, true, true
	}
	addr, secure = strings.CutPrefix(target, schemeDirect)
	return addr, secure, false
}

// prepareTLS takes the target apart.
func (r *run) prepareTLS() (err error) {
	var secure bool
	r.address, secure, r.probe = tlsTarget(r.Target)
	if !secure {
		return nil
	}
	if r.TLS == nil {
		return fmt.Errorf("--tls-ca FILE is missing: the CAs that have signed for %s", r.Target)
	}
	r.tls, err = tcpframe.NewTLS(tcpframe.TLSOptions{Config: r.TLS, Timeout: r.Timeout, WithoutALPN: true})
	return err
}

// tlsProbe is the Call that asks for TLS: NULL with AUTH_TLS. tlsReply is the Reply that offers it. RFC 9289
// Section 4.1.
var (
	tlsProbe = xdr.AppendWords(nil, 1, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 3, 0, oncrpc.FlavorTLS, 0, oncrpc.FlavorNone, 0)
	tlsReply = append(xdr.AppendWords(nil, 1, oncrpc.TypeReply, 0, oncrpc.FlavorNone, 8), "STARTTLS"...)
)

var errNoTLS = errors.New("the server does not offer TLS")

// A tlsClient is one connection of a load over TLS.
type tlsClient struct {
	w       *worker
	index   int
	x       *tcpframe.TLS
	probe   bool
	conn    *tcpframe.Conn
	seq     sequence
	table   []tlsSlot
	spare   []uint16
	parts   [2][]byte
	secured chan struct{} // closed when the handshake is done
	ended   chan error    // receives why the connection has ended
	joined  bool
	closing bool
}

// A tlsSlot is one outstanding Call of a connection. It is the Releaser of its message.
type tlsSlot struct{ slot }

// Release is part of tcpframe.Releaser.
func (s *tlsSlot) Release() { s.sent = true }

// dialTLS makes connection i of a run.
func dialTLS(ctx context.Context, w *worker, i int) error {
	c := &tlsClient{w: w, index: i, x: w.tls, probe: w.probe, secured: make(chan struct{}), ended: make(chan error, 1)}
	if i < w.Conns {
		c.seq = w.sequence(i)
		c.table = make([]tlsSlot, w.Depth)
		for n := range c.table {
			c.table[n].shift = w.shift(i, n)
			c.encode(&c.table[n], 0)
			c.spare = append(c.spare, uint16(n))
		}
	}
	w.alive.Add(1)
	_, err := w.loader.engine.Dial(ctx, w.address, w.loop, tcpframe.DialOptions{Conn: tcpframe.ConnOptions{
		Memory:    func(int) tcpframe.Memory { return &recordMemory{} },
		MaxRecord: w.replyMax + headMax, MaxOutbound: 1 << 40, OutboundLimit: 1 << 40,
		StallTimeout: w.Timeout, SendTimeout: w.Timeout,
	}}, c)
	if err != nil {
		w.alive.Done()
		return err
	}
	select {
	case <-c.secured:
		return nil
	case err := <-c.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// encode makes s hold a Call of kind k.
func (c *tlsClient) encode(s *tlsSlot, k uint8) {
	o := c.w.ops[k]
	s.op = k
	s.head = append(s.head[:0], o.head...)
	s.data = dataOf(pattern(), s.shift, o.size)
}

// Opened is part of tcpframe.RecordHandler.
func (c *tlsClient) Opened(x *tcpframe.Conn) {
	c.conn = x
	if c.probe {
		x.Send([][]byte{tlsProbe}, nil)
	} else {
		x.StartTLS(c.x)
	}
}

// Secured is part of tcpframe.TLSHandler.
func (c *tlsClient) Secured(*tcpframe.Conn, *tls.ConnectionState) {
	c.joined = true
	close(c.secured)
	switch {
	case c.w.ended:
		c.close()
	case c.table == nil:
		c.w.idle = append(c.w.idle, c)
	default:
		c.w.clients = append(c.w.clients, c)
	}
}

func (c *tlsClient) slots() int { return len(c.spare) }

func (c *tlsClient) call(start int64) {
	n := c.spare[len(c.spare)-1]
	c.spare = c.spare[:len(c.spare)-1]
	s := &c.table[n]
	if k := c.seq.op(c.w.run); k != s.op {
		c.encode(s, k)
	}
	s.xid, s.tag = c.seq.next(int(n), s.shift)
	c.w.ops[s.op].patch(s.head, s.xid, s.tag)
	s.busy, s.sent, s.start = true, false, start
	c.parts = [2][]byte{s.head, s.data}
	c.w.inFlight++
	c.conn.Send(c.parts[:], s)
}

// Record is part of tcpframe.RecordHandler.
func (c *tlsClient) Record(x *tcpframe.Conn, b tcpframe.Buffer) {
	defer b.Release()
	m := b.Bytes()
	if !c.joined {
		if !bytes.HasPrefix(m, tlsReply) {
			x.Abort(errNoTLS)
			return
		}
		x.StartTLS(c.x)
		return
	}
	xid := binary.BigEndian.Uint32(m)
	n := c.seq.slot(xid)
	if n >= len(c.table) || !c.table[n].busy || !c.table[n].sent || c.table[n].xid != xid {
		c.fail(fmt.Errorf("reply with xid %#08x, but no call with it is outstanding", xid))
		return
	}
	s := &c.table[n]
	o := c.w.ops[s.op]
	c.parts[0] = m
	if err := o.check(c.parts[:1], s.tag, c.w.Full, c.w.scratch[:]); err != nil {
		c.fail(fmt.Errorf("%s: %w", o.name, err))
		return
	}
	s.busy = false
	c.spare = append(c.spare, uint16(n))
	c.w.answered(c, o, s.start, c.w.now())
}

func (c *tlsClient) fail(err error) {
	if !c.closing {
		c.w.fail(fmt.Errorf("connection %d: %w", c.index, err))
		c.close()
	}
}

func (c *tlsClient) close() {
	c.closing = true
	c.conn.Abort(nil)
}

// Closed is part of tcpframe.RecordHandler.
func (c *tlsClient) Closed(_ *tcpframe.Conn, err error) {
	if err == nil || errors.Is(err, io.EOF) {
		err = errors.New("closed by the peer")
	}
	if c.joined {
		c.fail(err)
	}
	c.ended <- err
	c.w.alive.Done()
}

// A recordMemory lends the buffers of one connection's records, one of them again and again.
type recordMemory struct{ spare []*recordBuffer }

type recordBuffer struct {
	m *recordMemory
	b []byte
}

// Lease is part of tcpframe.Memory.
func (m *recordMemory) Lease(n int) (tcpframe.Buffer, error) {
	for i, b := range m.spare {
		if cap(b.b) >= n {
			m.spare[i] = m.spare[len(m.spare)-1]
			m.spare = m.spare[:len(m.spare)-1]
			b.b = b.b[:n]
			return b, nil
		}
	}
	return &recordBuffer{m: m, b: make([]byte, n)}, nil
}

// Return is part of tcpframe.Memory.
func (m *recordMemory) Return(b tcpframe.Buffer) { b.Release() }

// Wait is part of tcpframe.Memory.
func (*recordMemory) Wait(_ int, f func()) { go f() }

func (b *recordBuffer) Bytes() []byte { return b.b }
func (b *recordBuffer) Resize(n int)  { b.b = b.b[:n] }

// Release is part of tcpframe.Buffer. It is called on the connection's loop.
func (b *recordBuffer) Release() {
	const most = 8
	if len(b.m.spare) < most {
		b.m.spare = append(b.m.spare, b)
	}
}
