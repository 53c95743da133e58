package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
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

// An UpstreamTLS is how the connections to an upstream use TLS.
type UpstreamTLS struct {
	Required bool // a server without TLS is an error; otherwise its connections go on without
	Client   *tlsconf.Client
}

// same reports whether connections are made in the same way.
func (t *UpstreamTLS) same(o *UpstreamTLS) bool {
	return t == o || t != nil && o != nil && *t == *o
}

var (
	errNoTLS    = errors.New("proxy: the server does not offer TLS, which the upstream requires")
	errNoProbe  = errors.New("proxy: what the server has sent is not the Reply to the probe for TLS")
	errTLSLate  = errors.New("proxy: TLS was not started in time")
	errOldTrust = errors.New("proxy: the server's certificate is not trusted any more")
)

// A tlsStart is what a tcpConn has until TLS has begun, or is known to be impossible. It belongs to the
// connection's loop.
type tlsStart struct {
	u    *upstream // constant, as are all but failed
	m    *tcpConn
	tls  *tcpframe.TLS
	to   string // the endpoint
	must bool   // a server without TLS is an error
	with *tlsconf.Client
	was  uint64     // the version of with that tls is of, or an earlier one
	xid  uint32     // of the probe
	done chan error // gets the result, one

	failed error // why the connection is being closed
}

// newTLSStart prepares TLS for m, a connection to endpoint.
func newTLSStart(u *upstream, m *tcpConn, endpoint string, t *UpstreamTLS) (*tlsStart, error) {
	was := t.Client.Version()
	x, err := t.Client.TLS(endpoint, m.opts.ConnectTimeout)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	return &tlsStart{u: u, m: m, tls: x, to: endpoint, must: t.Required, with: t.Client, was: was, xid: u.p.xids.fresh(), done: make(chan error, 1)}, nil
}

// probe asks the server for TLS. The connection has just been opened.
func (t *tlsStart) probe() {
	program, version := uint32(primeProgram), uint32(primeVersion)
	if spoken := t.u.probes.spoken.Load(); spoken != 0 {
		program, version = uint32(spoken>>32), uint32(spoken)
	}
	t.m.conn.Send([][]byte{oncrpc.AppendTLSProbe(nil, t.xid, program, version)}, nil)
}

// record handles a message that comes before TLS.
func (t *tlsStart) record(b tcpframe.Buffer) {
	var r oncrpc.Reply
	err := oncrpc.ParseReply(b.Bytes(), &r)
	starts := err == nil && r.StartsTLS()
	b.Release()
	switch {
	case t.failed != nil:
	case err != nil:
		t.fail(fmt.Errorf("%w: %w", errNoProbe, err))
	case r.XID != t.xid:
		t.fail(errNoProbe)
	case starts:
		t.m.conn.StartTLS(t.tls)
	case t.must:
		t.u.tlsMissing.refused.Inc()
		t.fail(errNoTLS)
	default:
		t.u.tlsMissing.plain.Inc()
		t.u.lines.plain.Line(&t.u.log, zerolog.WarnLevel, "upstream_without_tls").Str("endpoint", t.to).
			Msg("the server does not offer TLS; the connection goes on without, because tls.mode is optional")
		t.end(nil)
	}
}

// fail ends the connection.
func (t *tlsStart) fail(err error) {
	t.failed = err
	t.m.conn.Abort(err)
}

// end has wait return. After nil the connection is the pool's.
func (t *tlsStart) end(err error) {
	if t.failed != nil {
		err = t.failed
	}
	t.m.start = nil
	t.done <- err
}

// wait waits until TLS has begun, or is known to be impossible. After an error the connection has ended.
func (t *tlsStart) wait(ctx context.Context) error {
	select {
	case err := <-t.done:
		return err
	case <-ctx.Done():
	}
	t.m.loop.tcp.Post(loop.TaskFunc(func() {
		if t.m.start == t && t.failed == nil {
			t.fail(fmt.Errorf("%w: %w", errTLSLate, ctx.Err()))
		}
	}))
	return <-t.done
}

// Secured is part of tcpframe.TLSHandler.
func (m *tcpConn) Secured(_ *tcpframe.Conn, cs *tls.ConnectionState) {
	t := m.start
	m.securedAt = time.Now()
	if t.with.Version() != t.was {
		// The files have changed since the dial began, and recheck has not asked this connection.
		if err := t.with.Recheck(cs.PeerCertificates, m.securedAt); err != nil {
			t.fail(fmt.Errorf("%w: %w", errOldTrust, err))
			return
		}
	}
	t.end(nil)
}

// security is part of upstreamConn.
func (m *tcpConn) security() *status.TLS {
	if s := m.conn.TLS(); s != nil {
		return tlsStatus(tlsconf.IdentityOf(s.PeerCertificates))
	}
	return nil
}

// distrust closes the connection, because err has the server's certificate refused now.
func (m *tcpConn) distrust(err error) {
	if !m.ending {
		m.abort(fmt.Errorf("%w: %w", errOldTrust, err))
	}
}
