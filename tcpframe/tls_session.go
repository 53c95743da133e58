package tcpframe

import (
	"crypto/tls"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

// A tlsStage is a stage of a session.
//
//	plainTail -> helloWait -> shaking -> secured
//	         \_______________/             a client sends the ClientHello
//
// Every stage may become failed.
type tlsStage uint8

const (
	plainTail tlsStage = iota // the Conn writes what StartTLS found in the queue; nothing may arrive
	helloWait                 // a server collects the ClientHello
	shaking                   // the handshake has a goroutine, or waits for one
	secured                   // records come and go, encrypted
	failed                    // TLS has failed: the Conn writes the alert, and ends
)

// A session is the TLS of a Conn. The loop owns it.
type session struct {
	conn   *Conn        // constant
	opts   *TLS         // constant
	counts *tlsCounters // constant
	server bool         // constant

	stage tlsStage
	due   int64                // time at which the stage has taken too long, up to shaking without a goroutine
	plain *outRecord           // the last record that leaves in plain text; nil if all have left
	spoke bool                 // a client has begun to send its ClientHello
	shake *tlsloop.Handshake   // in the stages helloWait and shaking
	state *tls.ConnectionState // from secured on
	tc    *tls.Conn            // from shaking on
	wire  tlsloop.Wire

	// Receiving.
	rx      int64           // octets of RPC received
	unread  int             // octets that crypto/tls has decrypted and that were not read yet, at most
	mark    [markLen]byte   // octets of record marks on their way to the splitter
	more    bool            // there may be octets to read without further input
	behind  bool            // the session has used its share of the pass
	pass    uint64          // the pass in which records were opened
	opened  int             // TLS records opened in that pass
	useless ratelimit.Meter // of TLS records without data

	// Sending.
	out      []byte // TLS records that wait to be written, from outAt on
	outAt    int
	sealed   outQueue // records of which out has the rest, each released when its part of out was written
	sealErr  error    // of crypto/tls
	notified bool     // close_notify was sent
}

// newSession makes the session of c, before anything was exchanged.
func newSession(c *Conn, t *TLS) *session {
	s := &session{
		conn: c, opts: t, server: c.listener != nil, plain: c.tail,
		counts: c.counters.countTLS(),
		due:    c.loop.Now() + int64(t.timeout),
	}
	s.wire.Owner = s
	s.counts.handshakes.Add(1)
	return s
}

// setStage begins the next stage of the handshake, and the time that it may take.
func (s *session) setStage(g tlsStage) {
	s.stage = g
	s.due = s.conn.loop.Now() + int64(s.opts.timeout)
}

// partial reports whether the peer has begun a TLS record, and has not ended it.
func (s *session) partial() bool { return s.stage == secured && s.wire.Started() }

// buffered returns how many octets of the peer the session holds.
func (s *session) buffered() int {
	switch {
	case s.conn.state == closed:
		return 0
	case s.shake != nil:
		return s.shake.Buffered()
	case s.stage == secured:
		return s.wire.Held() + s.unread
	}
	return 0
}

// owes reports whether octets wait to be written; queued says that records do.
func (s *session) owes(queued bool) bool { return s.out != nil || queued && s.stage != failed }
