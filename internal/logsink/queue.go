package logsink

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// A lineQueue writes lines on a goroutine of its own. The event loops log, and must not wait for a
// terminal that is stopped, or for a pipe that nobody reads. When the queue is full, lines are lost and
// counted.
type lineQueue struct {
	to    io.Writer
	lines chan []byte
	lost  atomic.Uint64
	stop  chan struct{}
	done  chan struct{}
}

// logQueueLen bounds the lines that wait.
const logQueueLen = 1024

// mayBlock reports whether a write to w can take for ever. Regular files cannot.
func mayBlock(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && !info.Mode().IsRegular()
}

// newLineQueue starts a lineQueue. It calls mention, which may write to the queue, with how many lines
// were lost when it can write again.
func newLineQueue(to io.Writer, mention func(lost uint64)) *lineQueue {
	q := &lineQueue{to: to, lines: make(chan []byte, logQueueLen), stop: make(chan struct{}), done: make(chan struct{})}
	go q.run(mention)
	return q
}

// errLineLost is returned for a line that found the queue full.
var errLineLost = errors.New("standard error does not take the log as fast as it comes")

// Write implements io.Writer. p is one line. The error is errLineLost or nil.
func (q *lineQueue) Write(p []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(p):
	default:
		q.lost.Add(1)
		return 0, errLineLost
	}
	return len(p), nil
}

func (q *lineQueue) run(mention func(uint64)) {
	defer close(q.done)
	for {
		select {
		case p := <-q.lines:
			_, _ = q.to.Write(p)
		case <-q.stop:
			for {
				select {
				case p := <-q.lines:
					_, _ = q.to.Write(p)
					continue
				default:
				}
				return
			}
		}
		if len(q.lines) == 0 {
			if n := q.lost.Swap(0); n > 0 {
				mention(n)
			}
		}
	}
}

// Close writes the lines that wait, but for no longer than a second.
func (q *lineQueue) close() {
	close(q.stop)
	select {
	case <-q.done:
	case <-time.After(time.Second):
	}
}
