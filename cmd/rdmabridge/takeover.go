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
