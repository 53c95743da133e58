package main

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
)

// A handover is the old side of a hand-over: it listens at handover.path for processes
// that want to take over. See handover_lines.go for the protocol. A nil handover is
// closed.
type handover struct {
	b    *bridge
	log  zerolog.Logger
	path string
	ln   *net.UnixListener
	ino  uint64 // the inode of the socket that this process put at path

	done chan int // receives the pid of the process that took over
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the fields below; a leaf
	conns  map[net.Conn]struct{}
	closed bool
}

// listenHandover listens at path. It replaces a socket that is there already: a process
// that takes over replaces the socket of the old one.
func listenHandover(path string, b *bridge) (*handover, error) {
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("handover: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	ln.SetUnlinkOnClose(false) // close unlinks path, the name that the socket gets below
	h := &handover{b: b, log: b.log, path: path, ln: ln, done: make(chan int, 1), conns: make(map[net.Conn]struct{})}
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path)); err != nil {
		_ = os.Remove(temporary)
		_ = ln.Close()
		return nil, fmt.Errorf("handover: %w", err)
	}
	h.ino = stampOfFile(path).ino
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		h.accept()
	}()
	return h, nil
}

// close closes the socket. It removes path unless a process has taken over or another
// process's socket is there.
func (h *handover) close(handedOver bool) {
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
	if !handedOver && stampOfFile(h.path).ino == h.ino {
		_ = os.Remove(h.path)
	}
}

// accept serves processes one after the other until one has taken over.
func (h *handover) accept() {
	var failures loglimit.Seldom
	for {
		c, err := h.ln.AcceptUnix()
		if err != nil {
			if h.isClosed() || errors.Is(err, net.ErrClosed) {
				return
			}
			failures.Line(&h.log, zerolog.ErrorLevel, "handover_failed").Err(err).Msg("hand-over: accept failed; trying again in a second")
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
			h.b.sink.SetRole("")
			h.log.Warn().Str("event", "handover_failed").Int("other_pid", pid).Err(err).Msg("hand-over failed; this process continues")
			continue
		}
		h.done <- pid
		return
	}
}

func (h *handover) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// add registers c for close. It returns false if h is closed already.
func (h *handover) add(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *handover) remove(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}

// serve hands the sockets to the process at the other end of c. It returns when that
// process is ready to serve.
func (h *handover) serve(c *net.UnixConn) (pid int, err error) {
	cred, err := peerCredentials(c)
	if err != nil {
		return 0, err
	}
	pid = int(cred.Pid)
	if !mayHandOver(cred) {
		return pid, fmt.Errorf("user %d may not take over: only the user of this process and root may", cred.Uid)
	}
	_ = c.SetDeadline(time.Now().Add(handoverStep))
	lines := bufio.NewReaderSize(c, maxLine)
	var hello greeting
	if err := readLine(lines, &hello); err != nil {
		return pid, err
	}
	if hello.Version != handoverVersion {
		return pid, fmt.Errorf("the new process uses version %d of the hand-over protocol, this process version %d", hello.Version, handoverVersion)
	}
	if hello.PID != 0 {
		// The kernel reports pid 0 for a process in another PID name space.
		pid = hello.PID
	}
	if err := h.send(c); err != nil {
		return pid, err
	}
	h.b.sink.SetRole(logsink.RoleOld)
	h.log.Info().Str("event", "handover_begun").Int("other_pid", pid).Msg("hand-over: sockets sent")
	_ = c.SetDeadline(time.Now().Add(handoverStart))
	if err := expectLine(lines, "ready"); err != nil {
		return pid, fmt.Errorf("the new process did not become ready: %w", err)
	}
	_ = c.SetDeadline(time.Now().Add(handoverStep))
	if _, err := io.WriteString(c, "going\n"); err != nil {
		return pid, err
	}
	return pid, nil
}

// send sends the greeting and the sockets in one message.
func (h *handover) send(c *net.UnixConn) error {
	files, g, err := h.b.sockets()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	if len(files) > maxHanded {
		return fmt.Errorf("%d sockets do not fit one message, which carries %d", len(files), maxHanded)
	}
	line, err := json.Marshal(g)
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd()) // of loop.Duplicate: this makes no socket blocking
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), unix.UnixRights(fds...), nil)
	return err
}

// mayHandOver reports whether a process with these credentials may take part in a hand-over with
// this one, on either side: it runs as the same user, or as root.
func mayHandOver(cred *unix.Ucred) bool { return int(cred.Uid) == os.Geteuid() || cred.Uid == 0 }

// peerCredentials returns the process and the user at the other end of c.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) { cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, optErr)
}
