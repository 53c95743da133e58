package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/proxy"
)

// An admin is the HTTP server for operators: /metrics, /livez, /readyz, and a
// status page at /. It only reads.
type admin struct {
	address  string
	log      zerolog.Logger
	server   *http.Server
	listener *net.TCPListener // nil before start, unless it was inherited
	addr     string           // after start
	served   chan struct{}

	alive  func(context.Context) error
	ready  func() error
	status func() proxy.Status
}

func newAdmin(address string, b *bridge) *admin {
	a := &admin{
		address: address, log: b.log, served: make(chan struct{}),
		alive: b.alive, ready: b.proxy.Ready, status: b.proxy.Status,
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", b.metrics.Handler())
	mux.HandleFunc("GET /livez", a.livez)
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /{$}", a.page)
	a.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	return a
}

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
		if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.log.Error().Err(err).Msg("admin server ended")
		}
	}()
	return nil
}

func (a *admin) close() error {
	if a.addr == "" {
		return nil
	}
	err := a.server.Close()
	<-a.served
	return err
}

// leave lets another process have the address. Requests under way are answered.
func (a *admin) leave() {
	_ = a.listener.Close()
	a.server.SetKeepAlivesEnabled(false)
}

// livez says whether the process works at all. Upstreams do not count: a restart
// would not bring storage back, but would cut every client off.
func (a *admin) livez(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	answer(w, a.alive(ctx))
}

// readyz says whether clients should be sent here.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) { answer(w, a.ready()) }

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
