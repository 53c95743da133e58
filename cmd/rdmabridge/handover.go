package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Hand-over
//
// A process that is started with --takeover asks the one that answers at
// handover.path for its listening sockets. Both listen on them for a moment; clients
// that connect come to the one or to the other, and none is refused, because the
// sockets themselves are never closed. When the new one can serve it says so, and the
// old one stops accepting and drains. If the new one ends before that, nothing has
// happened to the old one.
//
//	new: {"version":1,"pid":P}
//	old: {"version":1,"pid":P,"ready":true,"sockets":[...]}, with a descriptor for each
//	     in the same message
//	new: "ready"
//	old: "going"
//
// Each is a line. The socket is for processes of the same user, and of root.

// handoverVersion is that of the lines above.
const handoverVersion = 1

const (
	// maxHanded is how many descriptors one message carries: SCM_MAX_FD of Linux.
	maxHanded = 253
	// maxLine bounds a line.
	maxLine = 64 << 10
	// handoverStep is how long an answer may take that needs no start.
	handoverStep = 5 * time.Second
	// handoverStart is how long the new process may take until it can serve.
	handoverStart = 2 * time.Minute
	// takeoverReady is how long the new process waits for its upstreams, if the old
	// one has its own; otherwise it waits handoverStep.
	takeoverReady = 30 * time.Second
	// handoverSettle is how long connections that the old process has accepted may
	// take to come up before it drains.
	handoverSettle = 100 * time.Millisecond
)

// Kinds of sockets.
const (
	socketListener   = "listener"
	socketAdmin      = "admin"
	socketRPCBind    = "rpcbind"
	socketRPCBindUDP = "rpcbind-udp"
)

// A handed is one socket of a hand-over.
type handed struct {
	Kind    string `json:"kind"`
	Address string `json:"address"` // as the configuration had it
}

type greeting struct {
	Version int      `json:"version"`
	PID     int      `json:"pid"`
	Ready   bool     `json:"ready,omitempty"`
	Sockets []handed `json:"sockets,omitempty"`
}

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

// sockets are all that this process listens on.
func (b *bridge) sockets() (files []*os.File, g greeting, err error) {
	g = greeting{Version: handoverVersion, PID: os.Getpid(), Ready: b.proxy.Ready() == nil}
	add := func(kind, address string, f *os.File, e error) {
		if e != nil {
			err = errors.Join(err, e)
			return
		}
		files = append(files, f)
		g.Sockets = append(g.Sockets, handed{kind, address})
	}
	for address, s := range b.proxy.Sockets() {
		f, e := s.File()
		add(socketListener, address, f, e)
	}
	if b.admin != nil {
		f, e := b.admin.listener.File()
		add(socketAdmin, b.admin.address, f, e)
	}
	b.rpcbindMu.Lock()
	defer b.rpcbindMu.Unlock()
	if b.rpcbind != nil {
		tcp, udp, e := b.rpcbind.Files()
		add(socketRPCBind, b.rpcbindAddress, tcp, e)
		if e == nil {
			add(socketRPCBindUDP, b.rpcbindAddress, udp, nil)
		}
	}
	return files, g, err
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

func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func expectLine(r *bufio.Reader, want string) error {
	line, err := r.ReadSlice('\n')
	if err == nil && string(line) != want+"\n" {
		err = fmt.Errorf("%.20q instead of %q", line, want)
	}
	return err
}

// An inheritance is what was taken over from another process. A nil one is empty.
type inheritance struct {
	from  greeting
	conn  *net.UnixConn
	lines *bufio.Reader

	mu    sync.Mutex // guards files; a leaf
	files map[handed]*os.File
}

// takeOver asks the process at path for its sockets. Without one it returns nil.
func takeOver(path string) (*inheritance, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take-over: %w", err)
	}
	in := &inheritance{conn: c, files: make(map[handed]*os.File)}
	if err := in.receive(); err != nil {
		in.abandon()
		return nil, fmt.Errorf("take-over: %w", err)
	}
	return in, nil
}

func (in *inheritance) receive() error {
	_ = in.conn.SetDeadline(time.Now().Add(handoverStep))
	hello, err := json.Marshal(greeting{Version: handoverVersion, PID: os.Getpid()})
	if err != nil {
		return err
	}
	if _, err := in.conn.Write(append(hello, '\n')); err != nil {
		return err
	}
	b, oob := make([]byte, maxLine), make([]byte, unix.CmsgSpace(4*maxHanded))
	n, oobn, flags, _, err := in.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	fds, err := parseRights(oob[:oobn])
	if err != nil {
		return err
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		// net wants them so, and has them so; it costs nothing to say it again.
		_ = unix.SetNonblock(fd, true)
		files[i] = os.NewFile(uintptr(fd), "handed over")
	}
	in.lines = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(b[:n]), in.conn), maxLine)
	err = readLine(in.lines, &in.from)
	switch {
	case err != nil:
	case in.from.Version != handoverVersion:
		err = fmt.Errorf("the process there speaks version %d, this one %d", in.from.Version, handoverVersion)
	case flags&unix.MSG_CTRUNC != 0 || len(in.from.Sockets) != len(files):
		err = fmt.Errorf("%d descriptors for %d sockets", len(files), len(in.from.Sockets))
	}
	for i, f := range files {
		if err != nil || in.files[in.from.Sockets[i]] != nil {
			f.Close()
			continue
		}
		in.files[in.from.Sockets[i]] = f
	}
	return err
}

// parseRights finds the descriptors, which are this process's now.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // credentials, say
		}
		fds = append(fds, more...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}

// take returns the socket that was handed over for address, nil if there is none.
func (in *inheritance) take(kind, address string) *os.File {
	if in == nil {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[handed{kind, address}]
	delete(in.files, handed{kind, address})
	return f
}

// tcp is take for a socket that has to be one of TCP that listens.
func (in *inheritance) tcp(kind, address string) (*net.TCPListener, error) {
	f := in.take(kind, address)
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take-over: %s %s: %w", kind, address, err)
	}
	t, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("take-over: %s %s is no TCP socket", kind, address)
	}
	return t, nil
}

// listener is the socket of a listener, nil if there is none, or none that is good.
func (in *inheritance) listener(address string) *net.TCPListener {
	l, err := in.tcp(socketListener, address)
	if err != nil {
		return nil // opening the address will say what is wrong
	}
	return l
}

func (in *inheritance) admin(address string) (*net.TCPListener, error) {
	return in.tcp(socketAdmin, address)
}

// rpcbind are the sockets of rpcbind, both or none.
func (in *inheritance) rpcbind(address string) (*net.TCPListener, *net.UDPConn, error) {
	tcp, err := in.tcp(socketRPCBind, address)
	if tcp == nil || err != nil {
		return nil, nil, err
	}
	f := in.take(socketRPCBindUDP, address)
	if f == nil {
		_ = tcp.Close()
		return nil, nil, nil
	}
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err == nil {
		if udp, ok := c.(*net.UDPConn); ok {
			return tcp, udp, nil
		}
		_ = c.Close()
		err = errors.New("no UDP socket")
	}
	_ = tcp.Close()
	return nil, nil, fmt.Errorf("take-over: rpcbind %s: %w", address, err)
}

// finish tells the old process that this one serves, and waits until that knows. An
// error says that the old one goes on. Whether it does after it was told cannot be known
// for certain, and two that serve are better than none.
func (in *inheritance) finish(log zerolog.Logger) error {
	defer in.abandon()
	_ = in.conn.SetDeadline(time.Now().Add(handoverStep))
	if _, err := io.WriteString(in.conn, "ready\n"); err != nil {
		return fmt.Errorf("take-over: %w", err)
	}
	if err := expectLine(in.lines, "going"); err != nil {
		log.Warn().Int("pid", in.from.PID).Err(err).Msg("the process that was taken over from does not say that it goes")
	}
	return nil
}

// abandon lets go of what was not taken. Before finish it tells the old process to go
// on.
func (in *inheritance) abandon() {
	if in == nil {
		return
	}
	in.conn.Close()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, f := range in.files {
		f.Close()
	}
	in.files = nil
}
