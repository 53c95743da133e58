package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// An end is why a bridge drains.
type end struct {
	signal os.Signal
	pid    int // of the process that has taken over; 0: signal
}

// wait reloads the file when it is asked to or the file changes, and returns when it
// is over.
func (s service) wait(b *bridge, h *handover) end {
	var over <-chan int
	if h != nil {
		over = h.done
	}
	changed := make(chan struct{}, 1)
	var r *reloader
	var every atomic.Int64
	every.Store(int64(b.config.Reload.Watch))
	if s.file != "" {
		r = newReloader(b, s.file, s.sink, s.hash)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			s.watcher.watch(func() time.Duration { return time.Duration(every.Load()) }, changed, stop)
		}()
		defer func() {
			close(stop)
			<-stopped
		}()
	}
	var successor successor
	for {
		select {
		case pid := <-over:
			return end{pid: pid}
		case <-changed:
			r.changed()
		case sig := <-s.signals:
			switch {
			case sig == syscall.SIGUSR2 && h == nil:
				s.log.Warn().Msg("SIGUSR2: there is no handover.path to hand over by")
			case sig == syscall.SIGUSR2:
				successor.start(s.log)
			case sig != syscall.SIGHUP:
				return end{signal: sig}
			case r == nil:
				s.log.Warn().Msg("SIGHUP: there is no file to load again")
			default:
				tellSystemd(s.log, reloading())
				r.reload("signal")
				tellSystemd(s.log, "READY=1")
			}
		}
		every.Store(int64(b.config.Reload.Watch))
	}
}

// drain ends the bridge, because of why.
func (s service) drain(b *bridge, h *handover, why end) error {
	log, signals := s.log, s.signals
	if why.pid != 0 {
		log.Info().Int("pid", why.pid).Stringer("timeout", b.drainIn).Msg("handed over; draining")
		tellSystemd(log, fmt.Sprintf("MAINPID=%d\nREADY=1", why.pid))
		b.leave()
	} else {
		log.Info().Stringer("signal", why.signal).Stringer("timeout", b.drainIn).Msg("draining")
		tellSystemd(log, "STOPPING=1")
	}
	h.close(why.pid != 0)
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		first := time.Now()
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGHUP || sig == syscall.SIGUSR2 || time.Since(first) < signalEcho {
					continue
				}
				cancel(errors.New("second signal: " + sig.String()))
			case <-done:
			}
			return
		}
	}()
	err := b.drain(ctx)
	close(done)
	if err != nil && context.Cause(ctx) != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	cancel(nil)
	err = errors.Join(err, b.close())
	log.Info().Err(err).Msg("stopped")
	return err
}

// signalEcho is how long after a signal another one is taken for its echo:
// timeout(1), and shells that signal a process and its group, send each twice.
const signalEcho = 500 * time.Millisecond
