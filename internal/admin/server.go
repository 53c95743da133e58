package admin

import (
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Options describe a Server.
type Options struct {
	Address  string // host and port
	Log      zerolog.Logger
	Handler  http.Handler
	Closed   *metrics.Counter // connections that were closed for others; may be nil
	Listener *net.TCPListener // inherited from another process; nil: Start opens Address
}

// A Server serves a Handler at a TCP address, with bounded connections. Its methods are called by one
// goroutine.
type Server struct {
	o      Options
	server *http.Server
	addr   string        // the resolved address; set by Start
	served chan struct{} // closed when the server has stopped
}

// NewServer returns a Server that does not listen yet.
func NewServer(o Options) *Server {
	return &Server{o: o, served: make(chan struct{}), server: &http.Server{
		Handler:           o.Handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(&errorLog{log: o.Log}, "", 0),
	}}
}

// Start listens, unless the socket was inherited, and serves.
func (s *Server) Start() error {
	if s.o.Listener == nil {
		opened, err := loop.Listen(s.o.Address)
		if err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		s.o.Listener = opened
	}
	l := s.o.Listener
	s.addr = l.Addr().String()
	s.o.Log.Info().Str("event", "admin_listening").Str("address", s.addr).Msg("admin server listening")
	go func() {
		defer close(s.served)
		if err := s.server.Serve(&listener{TCPListener: l, log: s.o.Log, closed: s.o.Closed}); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.o.Log.Error().Str("event", "admin_failed").Err(err).Msg("admin server failed; metrics and status are not available")
		}
	}()
	return nil
}

// Addr returns the address that the server listens at, or "" before Start.
func (s *Server) Addr() string { return s.addr }

// Address returns the address of the Options, which is not resolved.
func (s *Server) Address() string { return s.o.Address }

// Socket returns the listening socket, or nil before Start.
func (s *Server) Socket() *net.TCPListener { return s.o.Listener }

// Close stops the server. It does nothing before Start.
func (s *Server) Close() error {
	if s.addr == "" {
		return nil
	}
	err := s.server.Close()
	<-s.served
	return err
}

// StopAccepting leaves the socket to another process. It answers the requests that are
// in progress.
func (s *Server) StopAccepting() {
	_ = s.o.Listener.Close()
	s.server.SetKeepAlivesEnabled(false)
}

// An errorLog writes the errors of package http to the log.
type errorLog struct {
	log   zerolog.Logger
	lines loglimit.Limit
}

// Write implements io.Writer. p is one line.
func (l *errorLog) Write(p []byte) (int, error) {
	l.lines.Line(&l.log, zerolog.WarnLevel, "admin_connection_failed").Str("error", strings.TrimSpace(string(p))).Msg("admin server: a connection failed")
	return len(p), nil
}
