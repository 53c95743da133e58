package accesslog

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Stderr is an Output for w, where other lines go as well.
func Stderr(w io.Writer) Output { return &shared{w} }

type shared struct{ io.Writer }

func (*shared) Flush() error  { return nil }
func (*shared) Reopen() error { return nil }
func (*shared) Close() error  { return nil }

// A file is an Output for a file of its own.
type file struct {
	path string

	mu sync.Mutex // guards f and w
	f  *os.File
	w  *bufio.Writer
}

// OpenFile opens the file at path for appending. It makes the file if there is none; others than its
// owner and group may not read it, because it says who reads what.
func OpenFile(path string) (Output, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &file{path: path, f: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o640) // a FIFO that nobody reads is an error
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	return f, nil
}

// Write implements io.Writer.
func (o *file) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A line is not divided between two writes: another process may append to the file too.
	if len(line) > o.w.Available() {
		if err := o.flush(); err != nil {
			return 0, err
		}
	}
	n, err := o.w.Write(line)
	return n, o.settle(err)
}

// Flush writes what Write has kept.
func (o *file) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flush()
}

func (o *file) flush() error { return o.settle(o.w.Flush()) }

// settle drops what could not be written, so that the next line is tried again.
func (o *file) settle(err error) error {
	if err != nil {
		o.w.Reset(o.f)
	}
	return err
}

// Reopen opens the file that is at the path now. After an error the old one stays in use. Once there is a
// file at the path, no line goes to the old one.
func (o *file) Reopen() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, err := open(o.path)
	if err != nil {
		return err
	}
	err = o.flush()
	_ = o.f.Close()
	o.f = f
	o.w.Reset(f)
	return err
}

// Close writes what is left and closes the file.
func (o *file) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.flush()
	if closed := o.f.Close(); err == nil {
		err = closed
	}
	return err
}
