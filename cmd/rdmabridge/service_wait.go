package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/handover"
)

// signalEcho is how soon after a signal another one counts as its echo: timeout(1),
// and shells that signal a process and its group, send each signal twice.
const signalEcho = 500 * time.Millisecond

// A stopReason says why a bridge drains.
type stopReason struct {
	signal os.Signal // nil if another reason follows
	reason string    // "operator" if rdmabridge drain asked for it, or "unmounted"
	pid    int       // the process that took over; 0 if it is none
}

// wait runs until there is a reason to drain. It reloads the file on SIGHUP and when
// the file changes, and starts a successor on SIGUSR2.
func (s service) wait(b *bridge, h *handover.Server) stopReason {
	var r *reloader
	changed := make(chan struct{}, 1)
	var interval atomic.Int64 // reload.watch, which a reload may change
	interval.Store(int64(b.config.Reload.Watch))
	if len(s.files) > 0 {
		r = newReloader(b, s.files, s.sink, s.hash)
		r.flags = s.flags
		defer s.watch(&interval, changed)()
	}
	var successor handover.Successor
	for {
		select {
		case pid := <-h.TakenOver():
			return stopReason{pid: pid}
		case why := <-b.stop:
			return why
		case <-changed:
			r.changed()
		case sig := <-s.signals:
			switch {
			case sig == syscall.SIGUSR2 && h == nil:
				s.log.Warn().Str("event", "signal_ignored").Msg("SIGUSR2 ignored: this process has no hand-over socket; set handover.path")
			case sig == syscall.SIGUSR2:
				successor.Start(s.log, s.successorError(b))
			case sig != syscall.SIGHUP:
				return stopReason{signal: sig}
			case r == nil:
				s.log.Warn().Str("event", "signal_ignored").Msg("SIGHUP ignored: there is no configuration file to reload")
			default:
				tellSystemd(s.log, reloading())
				r.reload(reloadSignal)
				tellSystemd(s.log, "READY=1")
			}
		}
		interval.Store(int64(b.config.Reload.Watch))
	}
}

// successorError returns why a successor could not run with the file as it is now: it has the restrictions of
// this process. It returns nil if the file cannot be loaded, which the successor reports itself.
func (s service) successorError(b *bridge) error {
	c, err := configs.LoadFiles(s.files, knownWith(s.flags))
	if err != nil {
		return nil
	}
	return b.hardening.permits(c, s.files)
}

// watch watches the file until the function that it returns is called.
func (s service) watch(interval *atomic.Int64, changed chan<- struct{}) (stop func()) {
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s.watcher.watch(func() time.Duration { return time.Duration(interval.Load()) }, changed, stopping)
	}()
	return func() {
		close(stopping)
		<-stopped
	}
}

// drain drains and closes b.
func (s service) drain(b *bridge, h *handover.Server, why stopReason) error {
	b.draining.Store(true)
	timeout := time.Duration(b.drainIn.Load())
	if why.pid != 0 {
		tellSystemd(s.log, fmt.Sprintf("MAINPID=%d\nREADY=1", why.pid))
		b.leave()
		s.log.Info().Str("event", "drain_begun").Str("reason", "handover").Int("other_pid", why.pid).Stringer("timeout", timeout).Msg("handed over; draining")
	} else {
		line := s.log.Info().Str("event", "drain_begun")
		if why.reason != "" {
			line.Str("reason", why.reason)
		} else {
			line.Str("reason", "signal").Stringer("signal", why.signal)
		}
		line.Stringer("timeout", timeout).Msg("draining")
		tellSystemd(s.log, "STOPPING=1")
	}
	h.Close(why.pid != 0)
	ctx, cancel := context.WithCancelCause(context.Background())
	drained := make(chan struct{})
	go s.cancelOnSignal(cancel, drained)
	err := b.drain(ctx)
	close(drained)
	if err != nil && context.Cause(ctx) != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	cancel(nil)
	err = errors.Join(err, b.close())
	s.log.Info().Str("event", "stopped").Err(err).Msg("stopped")
	return err
}

// cancelOnSignal cuts a drain short at the next SIGTERM or SIGINT that is not an echo.
// It returns when done is closed.
func (s service) cancelOnSignal(cancel context.CancelCauseFunc, done <-chan struct{}) {
	begin := time.Now()
	for {
		select {
		case sig := <-s.signals:
			if sig == syscall.SIGHUP || sig == syscall.SIGUSR2 || time.Since(begin) < signalEcho {
				continue
			}
			cancel(errors.New("second signal: " + sig.String()))
		case <-done:
		}
		return
	}
}
