package audit

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An Output is where lines go. Its caller sees to it that its methods are not called at the same time.
type Output interface {
	// Write writes whole lines, and returns how many octets it has written.
	Write(lines []byte) (int, error)
	Reopen() error
	Close() error
}

// A file is an Output.
type file struct {
	path string
	f    *os.File
	torn bool // it ends amid a line
}

// OpenFile opens the file at path for appending, and makes it if there is none. Others than its owner and group may not
// read it, because it says who does what.
func OpenFile(path string) (Output, error) {
	f, err := openAppend(path)
	if err != nil {
		return nil, err
	}
	return &file{path: path, f: f}, nil
}

func openAppend(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o640) // a FIFO that nobody reads is an error
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return f, nil
}

// Write is part of Output. Another process may append to the file during a hand-over, so lines are not divided between
// two writes.
func (o *file) Write(lines []byte) (int, error) {
	if o.torn {
		if _, err := o.f.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		o.torn = false
	}
	n, err := o.f.Write(lines)
	o.torn = n > 0 && lines[n-1] != '\n'
	return n, err
}

// Reopen is part of Output. After an error the old file stays in use.
func (o *file) Reopen() error {
	f, err := openAppend(o.path)
	if err != nil {
		return err
	}
	_ = o.f.Close()
	o.f, o.torn = f, false
	return nil
}

// Close is part of Output.
func (o *file) Close() error { return o.f.Close() }
