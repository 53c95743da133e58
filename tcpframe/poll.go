package tcpframe

import (
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readBuffer is the most octets of one read that are lent to a Stream. Of 16 KiB to 1 MiB, 64 KiB was best,
	// for small Calls and for bulk.
	readBuffer = 64 << 10
	// readyBatch is the most sockets that are ready together and are served one after the other.
	readyBatch = 64
	// passOctets is how many octets one pass reads. The Calls that they are, of however many clients, go to the
	// upstreams in one write each.
	passOctets = 64 << 10
)

const (
	readEvents   = unix.EPOLLIN | unix.EPOLLPRI
	brokenEvents = unix.EPOLLHUP | unix.EPOLLERR
)

// watch registers s, which has just been opened, with the poll.
func (l *Loop) watch(s *socket) error {
	if n := len(l.vacant); n > 0 {
		s.slot = l.vacant[n-1]
		l.vacant = l.vacant[:n-1]
		l.slots[s.slot] = s
	} else {
		s.slot = int32(len(l.slots))
		l.slots = append(l.slots, s)
	}
	s.asked = s.wants()
	err := l.gate.watch(unix.EPOLL_CTL_ADD, s.fd, s.slot, s.asked)
	if err != nil {
		l.leaveSlot(s)
	}
	return err
}

// unwatch removes s, whose descriptor is still open, from the poll: another socket may soon have the same slot.
func (l *Loop) unwatch(s *socket) {
	_ = l.gate.watch(unix.EPOLL_CTL_DEL, s.fd, s.slot, 0)
	l.leaveSlot(s)
}

func (l *Loop) leaveSlot(s *socket) {
	l.slots[s.slot] = nil
	l.vacant = append(l.vacant, s.slot)
}

// wants returns the events that the socket needs.
func (s *socket) wants() uint32 {
	var events uint32
	if !s.paused {
		events = readEvents
	}
	if s.full {
		events |= unix.EPOLLOUT
	}
	return events
}

// rewatchSoon makes the loop register the socket at the end of the pass for the events that it needs then.
func (s *socket) rewatchSoon() {
	if !s.stale {
		s.stale = true
		s.loop.stale = append(s.loop.stale, s)
	}
}

// rewatch registers the sockets whose events have changed in this pass.
func (l *Loop) rewatch() {
	for i := 0; i < len(l.stale); i++ {
		s := l.stale[i]
		l.stale[i] = nil
		s.stale = false
		events := s.wants()
		if s.closing || s.gone || events == s.asked {
			continue
		}
		if err := l.gate.watch(unix.EPOLL_CTL_MOD, s.fd, s.slot, events); err != nil {
			s.shut(err)
			continue
		}
		s.asked = events
	}
	l.stale = l.stale[:0]
}

// yieldEvery is how often a loop lets Go's scheduler run other goroutines, at least if it has something to do. After 10
// ms without that, the runtime would interrupt it with a signal, take its processor away in each system call, and
// look for such loops 50,000 times a second. Yielding each time before the loop sleeps would wake another
// thread each time.
const yieldEvery = int64(5 * time.Millisecond)

// run serves the sockets and the tasks of the loop, and returns when gnet is needed.
func (l *Loop) run() {
	for {
		if l.clock-l.yielded >= yieldEvery {
			l.yielded = l.clock
			runtime.Gosched()
		}
		n := l.wait()
		if n > 0 || len(l.late) > 0 {
			l.serve(l.events[:n])
		}
		if l.gate.yields() {
			if len(l.late) > 0 {
				l.ring() // for another pass soon
			}
			return
		}
	}
}

// wait waits until sockets are ready, or a task was posted, and returns how many events l.events has. It does not
// sleep while there is something else to do, and only after it has polled for EngineOptions.BusyPoll.
func (l *Loop) wait() (n int) {
	if len(l.late) > 0 || l.gate.yields() {
		return l.ask(0)
	}
	if busy := l.engine.busyPoll; busy > 0 {
		for until := l.engine.Now() + busy; l.engine.Now() < until; {
			if n := l.ask(0); n > 0 {
				return n
			}
		}
	}
	l.slept++
	return l.ask(-1)
}

// ask asks the kernel for events, and waits for up to msec milliseconds, or without end if msec is negative.
func (l *Loop) ask(msec int) (n int) {
	n, err := unix.EpollWait(l.gate.poll, l.events, msec)
	if err != nil {
		return 0 // EINTR
	}
	return n
}

// serve runs the passes for events. At the end of the first one it flushes the sockets for which FlushLate was called
// before.
func (l *Loop) serve(events []unix.EpollEvent) {
	l.enter(nil)
	for i, s := range l.late {
		l.late[i] = nil
		s.late = false
		s.FlushSoon()
	}
	l.late = l.late[:0]
	for i := range events {
		data := events[i].Fd
		if data == wakeData {
			continue // for tasks, which leave runs
		}
		// A socket that an earlier event has closed is not there any more, and its slot is empty: only gnet opens
		// others.
		if s := l.slots[data]; s != nil && !s.closing {
			s.happened(events[i].Events)
		}
		// The sockets after one that has ended are served in the next pass, when its handler knows of the end.
		if l.moved >= passOctets || len(l.closing) > 0 {
			l.leave()
			l.enter(nil)
		}
	}
	l.leave()
}

// happened handles events of the socket.
func (s *socket) happened(events uint32) {
	if s.full && events&(unix.EPOLLOUT|brokenEvents) != 0 {
		s.full = false
		s.rewatchSoon()
		s.stream.Writable()
	}
	switch {
	case s.closing:
	case !s.paused && events&(readEvents|brokenEvents) != 0:
		s.readable()
	case s.paused && events&brokenEvents != 0:
		s.shut(s.failure())
	}
}

// failure returns why the socket, which is not read from, has ended.
func (s *socket) failure() error {
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
		return unix.Errno(n)
	}
	return io.EOF
}

// readable reads from the socket.
func (s *socket) readable() {
	l := s.loop
	if s.awaits && s.inputWaits() {
		s.awaits = false
		if !s.stream.(inputStream).Input() {
			return
		}
	}
	l.heard(s)
	l.left = l.share.get
	n, err := unix.Read(s.fd, l.input)
	switch {
	case n > 0:
		s.stream.Received(l.input[:n])
		l.moved += n + l.share.get - l.left
	case err == nil:
		s.shut(io.EOF)
	case err != unix.EAGAIN && err != unix.EINTR:
		s.shut(err)
	}
	l.left = 0
}
