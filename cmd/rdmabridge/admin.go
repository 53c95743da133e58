package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// An admin is the HTTP server for operators. It serves /metrics, /livez, /readyz, and a
// status page at /. It changes nothing.
type admin struct {
	address  string
	log      zerolog.Logger
	server   *http.Server
	listener *net.TCPListener // set by start, or before it if the socket was inherited
	addr     string           // the resolved address; set by start
	served   chan struct{}    // closed when the server has stopped
	source   adminSource
}

// An adminSource provides the answers of an admin.
type adminSource struct {
	metrics http.Handler
	alive   func(context.Context) error
	ready   func() error
	status  func(status.Query) status.Document
	closed  *metrics.Counter // connections closed for others
}

func newAdmin(address string, log zerolog.Logger, source adminSource) *admin {
	a := &admin{address: address, log: log, served: make(chan struct{}), source: source}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", source.metrics)
	mux.HandleFunc("GET /livez", a.livez)
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /{$}", a.page)
	a.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          newAdminLog(log),
	}
	return a
}

// start listens, unless the socket was inherited, and serves.
func (a *admin) start() error {
	l := a.listener
	if l == nil {
		opened, err := net.Listen("tcp", a.address)
		if err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		l = opened.(*net.TCPListener)
		a.listener = l
	}
	a.addr = l.Addr().String()
	a.log.Info().Str("address", a.addr).Msg("admin server listening")
	go func() {
		defer close(a.served)
		if err := a.server.Serve(&adminListener{TCPListener: l, log: a.log, closed: a.source.closed}); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.log.Error().Err(err).Msg("admin server failed; metrics and status are not available")
		}
	}()
	return nil
}

// close stops the server. It does nothing before start.
func (a *admin) close() error {
	if a.addr == "" {
		return nil
	}
	err := a.server.Close()
	<-a.served
	return err
}

// stopAccepting leaves the socket to another process. It answers the requests that are
// in progress.
func (a *admin) stopAccepting() {
	_ = a.listener.Close()
	a.server.SetKeepAlivesEnabled(false)
}

// livez reports whether the event loops run. Upstreams do not count: a restart would not
// repair a server, but it would disconnect every client.
func (a *admin) livez(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	answer(w, a.source.alive(ctx))
}

// readyz reports whether the bridge can serve clients.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) { answer(w, a.source.ready()) }

// answer writes "ok", or err with status 503.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}
