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
)

// A handover is the old side: it listens for processes that want to take over.
type handover struct {
	b    *bridge
	log  zerolog.Logger
	path string
	ln   *net.UnixListener
	ino  uint64

	done chan int // receives the pid of the process that has taken over
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the rest; a leaf
	conns  map[net.Conn]struct{}
	closed bool
}

// listenHandover makes the socket at path, in the place of one that may be there.
func listenHandover(path string, b *bridge) (*handover, error) {
	made := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(made); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("handover: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	ln.SetUnlinkOnClose(false) // it has another name by then
	h := &handover{b: b, log: b.log, path: path, ln: ln, done: make(chan int, 1), conns: make(map[net.Conn]struct{})}
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		_ = os.Remove(made)
		_ = ln.Close()
		return nil, fmt.Errorf("handover: %w", err)
	}
	h.ino = stampOf(path).ino
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		h.accept()
	}()
	return h, nil
}

// close ends the socket. Its name is removed, unless it is another process's, or about
// to be.
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
	if !handedOver && stampOf(h.path).ino == h.ino {
		_ = os.Remove(h.path)
	}
}

// accept serves one process after the other.
func (h *handover) accept() {
	for {
		c, err := h.ln.AcceptUnix()
		if err != nil {
			h.mu.Lock()
			closed := h.closed
			h.mu.Unlock()
			if closed || errors.Is(err, net.ErrClosed) {
				return
			}
			h.log.Error().Err(err).Msg("hand-over: accept failed")
			time.Sleep(time.Second)
			continue
		}
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			c.Close()
			return
		}
		h.conns[c] = struct{}{}
		h.mu.Unlock()
		pid, err := h.serve(c)
		h.mu.Lock()
		delete(h.conns, c)
		h.mu.Unlock()
		c.Close()
		if err != nil {
			h.log.Warn().Int("pid", pid).Err(err).Msg("hand-over failed; this process goes on")
			continue
		}
		h.done <- pid
		return
	}
}

// serve hands the sockets to the process at c. It returns when that can serve.
func (h *handover) serve(c *net.UnixConn) (pid int, err error) {
	cred, err := peerOf(c)
	if err != nil {
		return 0, err
	}
	pid = int(cred.Pid)
	if uid := int(cred.Uid); uid != os.Geteuid() && uid != 0 {
		return pid, fmt.Errorf("user %d may not have the sockets", uid)
	}
	_ = c.SetDeadline(time.Now().Add(handoverStep))
	lines := bufio.NewReaderSize(c, maxLine)
	var hello greeting
	if err := readLine(lines, &hello); err != nil {
		return pid, err
	}
	if hello.Version != handoverVersion {
		return pid, fmt.Errorf("it speaks version %d, this process %d", hello.Version, handoverVersion)
	}
	if hello.PID != 0 {
		pid = hello.PID // as it is known there; the kernel's is 0 from another name space
	}
	if err := h.send(c); err != nil {
		return pid, err
	}
	h.log.Info().Int("pid", pid).Msg("hand-over: sockets sent")
	_ = c.SetDeadline(time.Now().Add(handoverStart))
	if err := expectLine(lines, "ready"); err != nil {
		return pid, fmt.Errorf("the new process did not get ready: %w", err)
	}
	_ = c.SetDeadline(time.Now().Add(handoverStep))
	if _, err := io.WriteString(c, "going\n"); err != nil {
		return pid, err
	}
	return pid, nil
}

// send sends the sockets.
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
		return fmt.Errorf("%d sockets are too many for one message", len(files))
	}
	line, err := json.Marshal(g)
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		// Not Fd, which would make the socket block, for all that share it.
		if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
			return err
		}
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), unix.UnixRights(fds...), nil)
	return err
}

// peerOf tells who is at the other end.
func peerOf(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, failed)
}
