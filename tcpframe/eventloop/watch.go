package eventloop

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A watcher waits for what gnet does not tell: that a socket with a full buffer can be written to again, and that a
// socket has ended that is not on its loop (away.go). gnet could wait for room itself, but only to write from a buffer
// of its own, into which it copies what the kernel did not take, without a limit. One epoll instance and one goroutine
// serve all loops. The goroutine sleeps in Go's own poller, of which the instance is a member, and holds no processor.
// A socket is registered when it is full or away for the first time, and stays: the kernel reports an edge only after it
// has refused octets.
type watcher struct {
	epoll *os.File
	fd    int           // epoll's descriptor
	done  chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards the rest; a leaf
	sockets map[int32]*watch
	last    int32 // key in sockets
}

// A watch is a socket as the watcher sees it. It is a Task of the socket's loop.
type watch struct {
	sock   *Socket
	key    int32 // in watcher.sockets
	fd     int   // the descriptor that is registered
	events atomic.Uint32
}

const brokenEvents = unix.EPOLLHUP | unix.EPOLLERR // the kernel always reports them

func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // as Go's poller wants it
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watcher{epoll: os.NewFile(uintptr(fd), "epoll"), fd: fd, done: make(chan struct{}), sockets: make(map[int32]*watch)}
	rc, err := w.epoll.SyscallConn()
	if err != nil {
		w.epoll.Close()
		return nil, err
	}
	go func() {
		defer close(w.done)
		var events [64]unix.EpollEvent
		_ = rc.Read(func(fd uintptr) bool { // until stop
			for {
				n, err := unix.EpollWait(int(fd), events[:], 0)
				if err != nil && err != unix.EINTR {
					panic("BUG: tcpframe: epoll_wait: " + err.Error())
				}
				if n == 0 {
					return false
				}
				w.tell(events[:max(n, 0)])
			}
		})
	}()
	return w, nil
}

// stop ends the goroutine.
func (w *watcher) stop() {
	w.epoll.Close()
	<-w.done
}

// tell tells the loops of events.
func (w *watcher) tell(events []unix.EpollEvent) {
	for _, e := range events {
		w.mu.Lock()
		x := w.sockets[e.Fd]
		w.mu.Unlock()
		if x != nil {
			x.events.Or(e.Events)
			x.sock.loop.Post(x)
		}
	}
}

// add watches the descriptor that s has now, until forget. s hears of events on its loop.
func (w *watcher) add(s *Socket) (*watch, error) {
	x := &watch{sock: s, fd: s.fd}
	w.mu.Lock()
	for {
		w.last++
		if w.sockets[w.last] == nil {
			break
		}
	}
	x.key = w.last
	w.sockets[x.key] = x
	w.mu.Unlock()
	return x, w.ctl(unix.EPOLL_CTL_ADD, x)
}

// forget ends the watch x, whose descriptor is still open; nil is none.
func (w *watcher) forget(x *watch) {
	if x == nil {
		return
	}
	_ = w.ctl(unix.EPOLL_CTL_DEL, x)
	w.mu.Lock()
	delete(w.sockets, x.key)
	w.mu.Unlock()
}

func (w *watcher) ctl(op int, x *watch) error {
	e := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLET, Fd: x.key}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.fd, op, x.fd, &e))
}

// Run passes the events on, on the socket's loop.
func (x *watch) Run() {
	if events := x.events.Swap(0); events != 0 {
		x.sock.happened(x, events)
	}
}
