package handover

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// Options are the options of Listen.
type Options struct {
	Path  string // handover.path
	Log   zerolog.Logger
	Sink  *logsink.Sink // whose lines say the role of this process; nil for none
	State func() *State // what this process hands over
}

// A State is what the old process hands over.
type State struct {
	Ready    bool   // whether /readyz says ok
	Identity string // of the bridge

	sockets []handedSocket
	files   []*os.File // of sockets
	err     error
}

// Add adds a socket, for address as the configuration has it, or the pipe. It takes f; that of a socket is of loop.Duplicate. An
// error makes the hand-over fail.
func (s *State) Add(kind, address string, f *os.File, err error) {
	if err != nil {
		s.err = errors.Join(s.err, err)
		return
	}
	s.files = append(s.files, f)
	s.sockets = append(s.sockets, handedSocket{kind, address})
}

// A Server is the old side of a hand-over: it listens at handover.path for processes
// that want to take over. A nil Server is closed.
type Server struct {
	o  Options
	ln *unixsocket.Listener

	done chan int // receives the pid of the process that took over
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the fields below; a leaf
	conns  map[net.Conn]struct{}
	closed bool
}

// Listen listens at the path. It replaces a socket that is there already: a process
// that takes over replaces the socket of the old one.
func Listen(o Options) (*Server, error) {
	ln, err := unixsocket.Listen(o.Path)
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	h := &Server{o: o, ln: ln, done: make(chan int, 1), conns: make(map[net.Conn]struct{})}
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		h.accept()
	}()
	return h, nil
}

// TakenOver returns a channel that receives the process ID of the process that has taken over. It is nil if none can.
func (h *Server) TakenOver() <-chan int {
	if h == nil {
		return nil
	}
	return h.done
}

// Close closes the socket. It removes the path unless a process has taken over or another
// process's socket is there.
func (h *Server) Close(handedOver bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	h.closed = true
	for c := range h.conns {
		c.Close()
	}
	h.mu.Unlock()
	_ = h.ln.Close()
	h.wg.Wait()
	if !handedOver {
		h.ln.Unlink()
	}
}

// accept serves processes one after the other until one has taken over.
func (h *Server) accept() {
	var failures loglimit.Seldom
	for {
		c, err := h.ln.AcceptUnix()
		if err != nil {
			if h.isClosed() || errors.Is(err, net.ErrClosed) {
				return
			}
			failures.Line(&h.o.Log, zerolog.ErrorLevel, "handover_failed").Err(err).Msg("hand-over: accept failed; trying again in a second")
			time.Sleep(time.Second)
			continue
		}
		if !h.add(c) {
			c.Close()
			return
		}
		pid, err := h.serve(c)
		h.remove(c)
		c.Close()
		if err != nil {
			h.o.Sink.SetRole("")
			h.o.Log.Warn().Str("event", "handover_failed").Int("other_pid", pid).Err(err).Msg("hand-over failed; this process continues")
			continue
		}
		h.done <- pid
		return
	}
}

func (h *Server) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// add registers c for Close. It returns false if h is closed already.
func (h *Server) add(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *Server) remove(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}

// serve hands the sockets to the process at the other end of c. It returns when that
// process is ready to serve.
func (h *Server) serve(c *net.UnixConn) (pid int, err error) {
	peer, err := unixsocket.PeerOf(c)
	if err != nil {
		return 0, err
	}
	pid = peer.PID
	if !peer.Trusted() {
		return pid, fmt.Errorf("user %d may not take over: only the user of this process and root may", peer.UID)
	}
	_ = c.SetDeadline(time.Now().Add(stepTimeout))
	lines := bufio.NewReaderSize(c, maxLine)
	var hello Greeting
	if err := readLine(lines, &hello); err != nil {
		return pid, err
	}
	if hello.Version != protocolVersion {
		return pid, fmt.Errorf("the new process uses version %d of the hand-over protocol, this process version %d", hello.Version, protocolVersion)
	}
	if hello.PID != 0 {
		// The kernel reports pid 0 for a process in another PID name space.
		pid = hello.PID
	}
	if err := h.send(c); err != nil {
		return pid, err
	}
	h.o.Sink.SetRole(logsink.RoleOld)
	h.o.Log.Info().Str("event", "handover_begun").Int("other_pid", pid).Msg("hand-over: sockets sent")
	_ = c.SetDeadline(time.Now().Add(startTimeout))
	if err := expectLine(lines, "ready"); err != nil {
		return pid, fmt.Errorf("the new process did not become ready: %w", err)
	}
	_ = c.SetDeadline(time.Now().Add(stepTimeout))
	if _, err := io.WriteString(c, "going\n"); err != nil {
		return pid, err
	}
	return pid, nil
}

// send sends the greeting and the sockets in one message.
func (h *Server) send(c *net.UnixConn) error {
	s := h.o.State()
	defer func() {
		for _, f := range s.files {
			f.Close()
		}
	}()
	if s.err != nil {
		return s.err
	}
	if len(s.files) > maxHanded {
		return fmt.Errorf("%d sockets do not fit one message, which carries %d", len(s.files), maxHanded)
	}
	line, err := json.Marshal(Greeting{Version: protocolVersion, PID: os.Getpid(), Ready: s.Ready, Identity: s.Identity, Sockets: s.sockets})
	if err != nil {
		return err
	}
	// Those of loop.Duplicate stay nonblocking. The pipe does not, and the new process sets that again.
	fds := make([]int, len(s.files))
	for i, f := range s.files {
		fds[i] = int(f.Fd())
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), unix.UnixRights(fds...), nil)
	return err
}
