package handover

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

	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// An Inheritance is the new side of a hand-over: the sockets received from the old
// process and the connection to it. A nil Inheritance has no sockets.
type Inheritance struct {
	From  Greeting // of the old process
	conn  *net.UnixConn
	lines *bufio.Reader // reads from conn

	mu    sync.Mutex // guards files; a leaf
	files map[handedSocket]*os.File
}

// TakeOver asks the process that listens at path for its sockets. It returns nil if no
// process listens there.
func TakeOver(path string) (*Inheritance, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take-over: %w", err)
	}
	if err := trusted(c); err != nil {
		c.Close()
		return nil, fmt.Errorf("take-over: %w", err)
	}
	in := &Inheritance{conn: c, files: make(map[handedSocket]*os.File)}
	if err := in.receive(); err != nil {
		in.Abandon()
		return nil, fmt.Errorf("take-over: %w", err)
	}
	return in, nil
}

// trusted returns an error unless the process at the other end of c runs as the user of this one
// or as root. Another user's process would hand over sockets at which it had listened, or
// descriptors of anything else.
func trusted(c *net.UnixConn) error {
	peer, err := unixsocket.PeerOf(c)
	if err != nil {
		return err
	}
	if !peer.Trusted() {
		return fmt.Errorf("a process of user %d listens at %s: only the user of this process and root may hand over sockets; remove that socket, or set handover.path to a directory that others cannot write to",
			peer.UID, c.RemoteAddr())
	}
	return nil
}

// receive exchanges greetings and receives the sockets.
func (in *Inheritance) receive() error {
	_ = in.conn.SetDeadline(time.Now().Add(stepTimeout))
	hello, err := json.Marshal(Greeting{Version: protocolVersion, PID: os.Getpid()})
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
		// Package net needs the sockets nonblocking. The old process keeps them so.
		_ = unix.SetNonblock(fd, true)
		files[i] = os.NewFile(uintptr(fd), "handed over")
	}
	in.lines = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(b[:n]), in.conn), maxLine)
	err = readLine(in.lines, &in.From)
	switch {
	case err != nil:
	case in.From.Version != protocolVersion:
		err = fmt.Errorf("the old process uses version %d of the hand-over protocol, this process version %d", in.From.Version, protocolVersion)
	case flags&unix.MSG_CTRUNC != 0 || len(in.From.Sockets) != len(files):
		err = fmt.Errorf("received %d descriptors for %d sockets", len(files), len(in.From.Sockets))
	}
	for i, f := range files {
		if err != nil || in.files[in.From.Sockets[i]] != nil {
			f.Close()
			continue
		}
		in.files[in.From.Sockets[i]] = f
	}
	return err
}

// parseRights returns the descriptors in a control message. They belong to this
// process from here on.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // a message of another type, such as credentials
		}
		fds = append(fds, more...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}

// remove removes the socket for address from in and returns it. It returns nil if
// there is none.
func (in *Inheritance) remove(kind, address string) *os.File {
	if in == nil {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[handedSocket{kind, address}]
	delete(in.files, handedSocket{kind, address})
	return f
}

// tcp removes a listening TCP socket from in and returns it. It returns nil if there is
// none for address, and an error if the socket is not a listening TCP socket.
func (in *Inheritance) tcp(kind, address string) (*net.TCPListener, error) {
	f := in.remove(kind, address)
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
		return nil, fmt.Errorf("take-over: %s %s is not a TCP socket", kind, address)
	}
	return t, nil
}

// Listener returns the socket of the listener at address. It returns nil if there is
// none or if the socket is unusable.
func (in *Inheritance) Listener(address string) *net.TCPListener {
	l, err := in.tcp(KindListener, address)
	if err != nil {
		return nil // the proxy opens the address itself and reports an error
	}
	return l
}

// Admin returns the socket of the admin server at address, or nil if there is none.
func (in *Inheritance) Admin(address string) (*net.TCPListener, error) {
	return in.tcp(KindAdmin, address)
}

// RPCBind returns both sockets of rpcbind at address, or nil for both.
func (in *Inheritance) RPCBind(address string) (*net.TCPListener, *net.UDPConn, error) {
	return in.both(KindRPCBind, KindRPCBindUDP, address)
}

// NLM returns both sockets of the lock manager at address, or nil for both.
func (in *Inheritance) NLM(address string) (*net.TCPListener, *net.UDPConn, error) {
	return in.both(KindNLM, KindNLMUDP, address)
}

// Names returns the pipe through which the old process tells the names that it has learned, or nil if there is none.
func (in *Inheritance) Names() *os.File { return in.remove(KindNames, "") }

func (in *Inheritance) both(kind, kindUDP, address string) (*net.TCPListener, *net.UDPConn, error) {
	tcp, err := in.tcp(kind, address)
	if tcp == nil || err != nil {
		return nil, nil, err
	}
	f := in.remove(kindUDP, address)
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
		err = errors.New("not a UDP socket")
	}
	_ = tcp.Close()
	return nil, nil, fmt.Errorf("take-over: %s %s: %w", kind, address, err)
}

// ReadyTimeout is how long this process may take to be as ready as the old one.
func (in *Inheritance) ReadyTimeout() time.Duration {
	if in.From.Ready {
		return readyTimeout
	}
	return stepTimeout
}

// Finish tells the old process that this one serves, and waits for its confirmation.
// An error means that the old process continues. A missing confirmation is not an
// error: the old process may have drained or not, and two processes that serve are
// better than none.
func (in *Inheritance) Finish(log zerolog.Logger) error {
	defer in.Abandon()
	_ = in.conn.SetDeadline(time.Now().Add(stepTimeout))
	if _, err := io.WriteString(in.conn, "ready\n"); err != nil {
		return fmt.Errorf("take-over: %w", err)
	}
	if err := expectLine(in.lines, "going"); err != nil {
		log.Warn().Str("event", "handover_unconfirmed").Int("other_pid", in.From.PID).Err(err).Msg("take-over: the old process did not confirm that it drains; check that it exits")
	}
	return nil
}

// Abandon closes the connection to the old process and every socket still in in. The
// old process continues if Finish was not called.
func (in *Inheritance) Abandon() {
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
