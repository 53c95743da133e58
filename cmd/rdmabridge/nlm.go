package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/nlm"
)

// A lockService is the lock manager of a bridge, if its configuration has one.
type lockService struct {
	mu      sync.Mutex       // guards the fields below; a leaf
	server  *nlm.Server      // nil if the service is not running
	address string           // from the configuration, not resolved
	lock    *os.File         // of the state directory; nil if there is none
	tcp     *net.TCPListener // taken over, and not yet used; nil otherwise
	udp     *net.UDPConn     // set exactly when tcp is
}

// startNLM starts the lock manager. A process that takes over only gets its sockets: clients wait in them until the
// process before has written down what they have locked, and beginNLM reads it.
func (b *bridge) startNLM() error {
	c := &b.config.NLM
	if !c.Enabled() {
		return nil
	}
	tcp, udp, err := b.inherited.NLM(c.Address)
	if err != nil {
		return err
	}
	if tcp != nil {
		b.locks.mu.Lock()
		b.locks.tcp, b.locks.udp, b.locks.address = tcp, udp, c.Address
		b.locks.mu.Unlock()
		return nil
	}
	return b.listenNLM(nil, nil)
}

// beginNLM starts the lock manager of a process that has taken over. It does nothing in others.
func (b *bridge) beginNLM() {
	b.locks.mu.Lock()
	tcp, udp := b.locks.tcp, b.locks.udp
	b.locks.tcp, b.locks.udp = nil, nil
	b.locks.mu.Unlock()
	if tcp == nil {
		return
	}
	if err := b.listenNLM(tcp, udp); err != nil {
		b.log.Error().Str("event", "nlm_failed").Err(err).Msg("the lock manager is not running")
	}
}

func (b *bridge) listenNLM(tcp *net.TCPListener, udp *net.UDPConn) error {
	c := &b.config.NLM
	o := translate.NLM(c, b.identity)
	o.Log, o.Metrics, o.TCP, o.UDP = b.log, b.metrics, tcp, udp
	lock, err := lockState(o.State, lockTimeout)
	if err != nil {
		if tcp != nil {
			err = errors.Join(err, tcp.Close(), udp.Close())
		}
		return err
	}
	s, err := nlm.Listen(o)
	if err != nil {
		lock.Close()
		return err
	}
	b.locks.mu.Lock()
	b.locks.server, b.locks.address, b.locks.lock = s, c.Address, lock
	b.locks.mu.Unlock()
	return nil
}

// closeNLM stops the lock manager. It does nothing if that is not running.
func (b *bridge) closeNLM() error {
	b.locks.mu.Lock()
	s, lock, tcp, udp := b.locks.server, b.locks.lock, b.locks.tcp, b.locks.udp
	b.locks.server, b.locks.lock, b.locks.tcp, b.locks.udp = nil, nil, nil, nil
	b.locks.mu.Unlock()
	if tcp != nil {
		return errors.Join(tcp.Close(), udp.Close())
	}
	if s == nil {
		return nil
	}
	err := s.Close()
	lock.Close()
	return err
}

// updateNLM applies the configuration in force to the lock manager. old is the configuration that was in force before.
// Only nlm.allow changes without a restart of the service.
func (b *bridge) updateNLM(old *configs.Config) error {
	next, before := b.config.NLM, old.NLM
	next.Allow, before.Allow = nil, nil
	if same := fmt.Sprint(next) == fmt.Sprint(before); b.locks.server == nil || !same {
		return errors.Join(b.closeNLM(), b.startNLM())
	}
	b.locks.server.Allow(translate.Prefixes(b.config.NLM.Allow))
	return nil
}

// nlmAddr returns where the lock manager is. It is invalid if there is none.
func (b *bridge) nlmAddr() netip.AddrPort {
	b.locks.mu.Lock()
	defer b.locks.mu.Unlock()
	switch {
	case b.locks.server != nil:
		return b.locks.server.Addr()
	case b.locks.tcp != nil:
		a := b.locks.tcp.Addr().(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}

// lockTimeout is how long a process waits for the directory of the process that it takes over from.
const lockTimeout = 10 * time.Second

// lockState makes a directory and reserves it for this process: two must not write to one file. It waits for another
// process until the timeout is over. It returns nil for "".
func lockState(dir string, timeout time.Duration) (*os.File, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("nlm.state: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("nlm.state: %w", err)
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("nlm.state: another process uses %s: %w; end it, or write another directory", dir, err)
		}
	}
}
