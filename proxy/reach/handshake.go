package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// RPC-with-TLS for upstreams, RFC 9289
//
// A connection begins with a probe, a NULL Call of flavor AUTH_TLS, behind the PROXY header if there is
// one. If the Reply says that the server has TLS, package tcpframe does the handshake. The pool gets the
// connection when that is done, and knows nothing of it.
//
// "RPC operation may continue, depending on local policy", Section 4.1, if the Reply says anything else:
// then a connection of an upstream that does not require TLS goes on without. A handshake that fails is
// an error in both cases, as is a Reply that does not come: somebody on the path could bring about both.

// A TLS says how the connections to an upstream use TLS.
type TLS struct {
	Required bool // a server without TLS is an error; otherwise its connections go on without
	Client   *tlsconf.Client
}

// Same reports whether connections are made in the same way.
func (t *TLS) Same(o *TLS) bool {
	return t == o || t != nil && o != nil && *t == *o
}

var (
	errNoTLS    = errors.New("proxy/reach: the server does not offer TLS, which the upstream requires")
	errNoProbe  = errors.New("proxy/reach: what the server has sent is not the Reply to the probe for TLS")
	errTLSLate  = errors.New("proxy/reach: TLS was not started in time")
	errOldTrust = errors.New("proxy/reach: the server's certificate is not trusted any more")
)

// IsTLS reports whether err, with which a connection has ended or could not be made, is about its TLS.
func IsTLS(err error) bool {
	for _, is := range []error{errNoTLS, errNoProbe, errTLSLate, errOldTrust} {
		if errors.Is(err, is) {
			return true
		}
	}
	_, ok := errors.AsType[*tcpframe.TLSError](err)
	return ok
}

// Handshakes are how the connections of one upstream get TLS. They are safe for concurrent use. They know the
// connections from the time before these choose whom they trust: the pools know a connection only when its handshake
// is done, which is too late to find those whose trust has changed meanwhile.
type Handshakes struct {
	watch          *Watch // constant, as all but all
	lines          *Lines
	refused, plain *metrics.Counter // connections whose server does not offer TLS

	mu  sync.Mutex // guards all; a leaf
	all map[*Handshake]struct{}
}

// NewHandshakes makes the handshakes of the upstream that has this name.
func NewHandshakes(m *metrics.Registry, upstream string, w *Watch, l *Lines) *Handshakes {
	return &Handshakes{
		watch: w, lines: l, all: make(map[*Handshake]struct{}),
		refused: m.Counter(metrics.UpstreamTLSMissing, upstream, "refused"),
		plain:   m.Counter(metrics.UpstreamTLSMissing, upstream, "plain"),
	}
}

// A Handshake gives one connection TLS, and knows until the connection's end whom it trusts. It belongs to the
// connection's loop. Some methods may be called if it is nil, because the connection has no TLS.
type Handshake struct {
	hs       *Handshakes // constant, as the next seven
	tls      *tcpframe.TLS
	endpoint string
	opts     *TLS
	was      uint64 // the version of opts.Client that tls is of, or an earlier one
	xid      uint32 // of the probe
	loop     loop.Loop
	close    func(error) // closes the connection; any goroutine

	done chan error // gets the result, one

	conn   *tcpframe.Conn // nil before Opened
	over   bool           // TLS has begun, or the connection goes on without, or has ended
	failed error          // why the connection is being closed
	began  time.Time      // when TLS had begun
}

// Add prepares TLS for a connection to endpoint on the loop l, which close closes on any goroutine. Remove or
// Closed has to follow.
func (hs *Handshakes) Add(
	t *TLS, endpoint string, timeout time.Duration, l loop.Loop, close func(error),
) (*Handshake, error) {
	was := t.Client.Version()
	x, err := t.Client.TLS(endpoint, timeout)
	if err != nil {
		return nil, fmt.Errorf("proxy/reach: %w", err)
	}
	h := &Handshake{
		hs: hs, tls: x, endpoint: endpoint, opts: t, was: was, xid: hs.watch.newXID(),
		loop: l, close: close, done: make(chan error, 1),
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.all[h] = struct{}{}
	return h, nil
}

// Remove forgets the connection, which could not be made. h may be nil.
func (h *Handshake) Remove() {
	if h == nil {
		return
	}
	h.hs.mu.Lock()
	defer h.hs.mu.Unlock()
	delete(h.hs.all, h)
}

// Busy reports whether TLS has yet to begin: every message is for Record. h may be nil.
func (h *Handshake) Busy() bool { return h != nil && !h.over }

// Opened asks the server for TLS on c, which has just been opened. h may be nil.
func (h *Handshake) Opened(c *tcpframe.Conn) {
	if h == nil {
		return
	}
	h.conn = c
	program, version := h.hs.watch.Program()
	c.Send([][]byte{oncrpc.AppendTLSProbe(nil, h.xid, program, version)}, nil)
}

// Record handles a message that comes before TLS.
func (h *Handshake) Record(b tcpframe.Buffer) {
	var r oncrpc.Reply
	err := oncrpc.ParseReply(b.Bytes(), &r)
	starts := err == nil && r.StartsTLS()
	b.Release()
	switch {
	case h.failed != nil:
	case err != nil:
		h.Unreadable(err)
	case r.XID != h.xid:
		h.fail(errNoProbe)
	case starts:
		h.conn.StartTLS(h.tls)
	case h.opts.Required:
		h.hs.refused.Inc()
		h.fail(errNoTLS)
	default:
		h.hs.plain.Inc()
		h.hs.lines.WithoutTLS(h.endpoint)
		h.end(nil)
	}
}

// Unreadable ends the connection: a message that came before TLS cannot be read because of err.
func (h *Handshake) Unreadable(err error) { h.fail(fmt.Errorf("%w: %w", errNoProbe, err)) }

// fail ends the connection.
func (h *Handshake) fail(err error) {
	h.failed = err
	h.conn.Abort(err)
}

// end has Wait return. After nil the connection is the pool's.
func (h *Handshake) end(err error) {
	if h.failed != nil {
		err = h.failed
	}
	h.over = true
	h.done <- err
}

// Wait waits until TLS has begun, or is known to be impossible. After an error the connection has ended. Any goroutine.
// h may be nil.
func (h *Handshake) Wait(ctx context.Context) error {
	if h == nil {
		return nil
	}
	select {
	case err := <-h.done:
		return err
	case <-ctx.Done():
	}
	h.loop.Post(loop.TaskFunc(func() {
		if !h.over && h.failed == nil {
			h.fail(fmt.Errorf("%w: %w", errTLSLate, ctx.Err()))
		}
	}))
	return <-h.done
}

// Secured notes that TLS has begun.
func (h *Handshake) Secured(cs *tls.ConnectionState) {
	h.began = time.Now()
	if h.opts.Client.Version() != h.was {
		// The files have changed since the dial began, and Recheck has not asked this connection.
		if err := h.opts.Client.Recheck(cs.PeerCertificates, h.began); err != nil {
			h.fail(fmt.Errorf("%w: %w", errOldTrust, err))
			return
		}
	}
	h.end(nil)
}

// Closed notes that the connection has ended with err. It reports whether TLS had not begun: then the connection has
// never been the pool's. h may be nil.
func (h *Handshake) Closed(err error) (early bool) {
	h.Remove()
	if early = h.Busy(); early {
		h.end(err)
	}
	return early
}

// Recheck closes the connections to servers that x would refuse now. It waits for the loops, until quit is closed.
func (hs *Handshakes) Recheck(x *tlsconf.Client, quit <-chan struct{}) {
	type peer struct {
		h     *Handshake
		certs []*x509.Certificate // none if there is nothing to check
		began time.Time
	}
	hs.mu.Lock()
	peers, n := make(chan peer, len(hs.all)), len(hs.all)
	for h := range hs.all {
		h.loop.Post(loop.TaskFunc(func() {
			p := peer{h: h}
			// Before TLS has begun, Secured will see that the files have changed.
			if h.over && h.conn != nil {
				if s := h.conn.TLS(); s != nil {
					p.certs, p.began = s.PeerCertificates, h.began
				}
			}
			peers <- p
		}))
	}
	hs.mu.Unlock()
	for range n {
		select {
		case p := <-peers:
			// All endpoints of an upstream with a server name have that. Otherwise each connection has checked
			// the name of its own, which does not change.
			if p.certs == nil {
				continue
			}
			if err := x.Recheck(p.certs, p.began); err != nil {
				p.h.close(fmt.Errorf("%w: %w", errOldTrust, err))
			}
		case <-quit:
			return
		}
	}
}
