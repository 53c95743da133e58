package control

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// MaxConnections bounds the connections of a Server, whose descriptors are reserved.
const MaxConnections = 32

// maxBody is the longest body of a request.
const maxBody = 64 << 10

// closeTimeout bounds how long Close waits for answers that are being written.
const closeTimeout = 200 * time.Millisecond

// probeTimeout bounds how long another process may take to accept a connection.
const probeTimeout = time.Second

// A Server answers on a Unix socket. Its methods are called by one goroutine.
type Server struct {
	path   string
	log    zerolog.Logger
	mux    *http.ServeMux
	http   *http.Server
	ln     *unixsocket.Listener // nil until Start has succeeded
	served chan struct{}        // closed when the server has stopped
	cancel func()               // ends the context of all requests
}

// NewServer makes a Server that will listen at path, which is absolute.
func NewServer(path string, log zerolog.Logger) *Server {
	s := &Server{path: path, log: log, mux: http.NewServeMux(), served: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.http = &http.Server{
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Handler:           http.HandlerFunc(s.serve),
		ConnContext:       withPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(&errorLog{log: log}, "", 0),
	}
	return s
}

// Path is where s listens.
func (s *Server) Path() string { return s.path }

// Handle makes h answer the requests that match pattern, as in http.ServeMux. It is called before
// Start. A handler that writes for longer than two minutes sets its own deadline
// (http.ResponseController).
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// serve answers a request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(pidHeader, strconv.Itoa(os.Getpid()))
	w.Header().Set("Cache-Control", "no-store")
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

// An InUseError says that another process listens at a path.
type InUseError struct {
	Path string
	PID  int // 0 if it is not known
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("control: process %d listens at %s", e.PID, e.Path)
}

// Start listens. A socket that a dead process has left is replaced, and so is that of the process
// predecessor, which hands over to this one; 0 stands for none. The socket of another living process
// stays, and Start returns an *InUseError.
func (s *Server) Start(predecessor int) error {
	if err := makeDirectory(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	if err := s.vacant(predecessor); err != nil {
		return err
	}
	ln, err := unixsocket.Listen(s.path)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	s.ln = ln
	go func() {
		defer close(s.served)
		err := s.http.Serve(&listener{UnixListener: ln.UnixListener, log: s.log})
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Error().Err(err).Str("event", "control_failed").Msg("control socket failed; commands such as rdmabridge top cannot reach this process")
		}
	}()
	return nil
}

// makeDirectory makes dir unless it is there. The directory of root can be read by others, so that
// they are told that the socket is root's.
func makeDirectory(dir string) error {
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	if err := os.Mkdir(dir, mode); err == nil {
		return os.Chmod(dir, mode) // whatever the umask is
	}
	return os.MkdirAll(dir, mode)
}

// vacant returns an error if s must not listen at its path.
func (s *Server) vacant(predecessor int) error {
	switch info, err := os.Lstat(s.path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("control: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("control: %s is there and is no socket; remove it, or set control.path to another path", s.path)
	}
	c, err := net.DialTimeout("unix", s.path, probeTimeout)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist):
		return nil // its process is dead
	case err != nil:
		return fmt.Errorf("control: %w", err)
	}
	defer c.Close()
	p, err := unixsocket.PeerOf(c.(*net.UnixConn))
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	if predecessor != 0 && (p.PID == predecessor || p.PID == 0) {
		return nil
	}
	return &InUseError{Path: s.path, PID: p.PID}
}

// StopAccepting leaves the path to another process. The requests that have begun are answered.
func (s *Server) StopAccepting() {
	if s.ln != nil {
		_ = s.ln.Close()
		s.http.SetKeepAlivesEnabled(false)
	}
}

// Close ends all connections, and removes the socket unless another process has its own there. It
// does nothing if s has not started.
func (s *Server) Close() error {
	if s.ln == nil {
		return nil
	}
	// The answer to rdmabridge drain may still be on its way. Handlers that go on, such as those of
	// captures, see that their context is done.
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		err = nil // StopAccepting closed the listener
	}
	<-s.served
	s.ln.Unlink()
	return err
}

// withPeer adds the peer of c to the context of its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if pc, ok := c.(*conn); ok {
		return context.WithValue(ctx, peerKey{}, pc.peer)
	}
	return ctx
}

// An errorLog writes the errors of package http to the log.
type errorLog struct {
	log   zerolog.Logger
	lines loglimit.Limit
}

// Write implements io.Writer. p is one line.
func (e *errorLog) Write(p []byte) (int, error) {
	if ok, suppressed := e.lines.Allow(time.Now()); ok {
		e.log.Warn().Str("event", "control_connection_failed").Str("error", strings.TrimSpace(string(p))).Uint64("suppressed", suppressed).
			Msg("control socket: a connection failed")
	}
	return len(p), nil
}
