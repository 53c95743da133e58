//go:build ibverbs

package ibverbs

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// A poller waits for a descriptor of rdma-core in the runtime's poller, so that no thread blocks.
// It has a duplicate, because rdma-core closes its own descriptor.
type poller struct {
	file *os.File
	raw  syscall.RawConn
}

func newPoller(fd int, name string) (*poller, error) {
	d, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, fmt.Errorf("ibverbs: descriptor of %s: %w", name, errno)
	}
	if err := syscall.SetNonblock(int(d), true); err != nil {
		_ = syscall.Close(int(d))
		return nil, fmt.Errorf("ibverbs: descriptor of %s: %w", name, err)
	}
	f := os.NewFile(d, name)
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // an error if the descriptor cannot be polled
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("ibverbs: descriptor of %s: %w", name, err)
	}
	return &poller{f, raw}, nil
}

// wait calls try each time that the descriptor may be readable, until try returns true. After stop it
// returns an error.
func (p *poller) wait(try func() bool) error {
	return p.raw.Read(func(uintptr) bool { return try() })
}

// waiter returns wait with this try, as a function that does not allocate.
func (p *poller) waiter(try func() bool) func() error {
	f := func(uintptr) bool { return try() }
	return func() error { return p.raw.Read(f) }
}

// stop ends every wait.
func (p *poller) stop() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) }

func (p *poller) close() { p.file.Close() }
