package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

func newServeCommand() *cobra.Command {
	var file string
	var takeover bool
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the bridge",
		Long: `Serve runs the bridge that a configuration describes. SIGTERM or SIGINT drains:
nobody new is let in, Calls in flight are answered, idle connections are closed;
a second signal, half a second later or more, or drain.timeout, cuts what is left.

SIGHUP loads the file again, as does a change of it: reload.watch says how often it
is looked at. A file with problems is refused whole. The log has every setting that
changed, and those that need a restart.

With --takeover it begins with the listening sockets of the process that answers at
handover.path. When this one can serve, that one drains and ends; if this one ends
before, that one goes on. SIGUSR2 makes a process start its successor itself: the
same command line, with --takeover.

Exit codes: 0 drained, 1 the file has problems or the bridge failed, 2 the file
cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hash, watched := hashFile(file), newWatcher(file)
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			limitHeap(c.Memory)
			signals, stop := notify()
			defer stop()
			sink := newLogSink(cmd.ErrOrStderr(), c.Log)
			return failed(service{
				config: c, log: sink.logger(), signals: signals,
				file: file, hash: hash, watcher: watched, sink: sink, takeover: takeover,
			}.run())
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVar(&takeover, "takeover", false, "take the listening sockets of the process at handover.path, if there is one")
	return cmd
}

// notify delivers the signals that end a process gently, the one for its file, and the
// one for its successor.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR2)
	return ch, func() { signal.Stop(ch) }
}

// signalEcho is how long after a signal another one is taken for its echo:
// timeout(1), and shells that signal a process and its group, send each twice.
const signalEcho = 500 * time.Millisecond

// serve runs the bridge until a signal has drained it. started, which may be nil,
// is called once it listens.
func serve(c *configs.Config, log zerolog.Logger, signals <-chan os.Signal, started func(*bridge) error) error {
	return service{config: c, log: log, signals: signals, started: started}.run()
}

// A service is what one run of serve is made of.
type service struct {
	config  *configs.Config
	log     zerolog.Logger
	signals <-chan os.Signal
	started func(*bridge) error // nil for none

	// For reloading; without file there is none.
	file    string
	hash    [sha256.Size]byte // of the file's content when it was loaded, or before
	watcher *watcher          // of the file since then
	sink    *logSink          // of log; nil if it is another's

	takeover bool // from the process at handover.path
}

// run runs the bridge until a signal has drained it, or another process has taken
// over.
func (s service) run() error {
	c := s.config
	in, err := s.inherit()
	if err != nil {
		return err
	}
	b, err := inheritBridge(c, s.log, in)
	if err != nil {
		in.abandon()
		return err
	}
	s.log.Info().Str("version", buildInfo().Version).Stringer("memory", c.Memory.Budget).Msg("starting")
	h, err := s.start(b, in)
	if err != nil {
		in.abandon() // first: the other process goes on
		return errors.Join(err, b.close())
	}
	state := "READY=1"
	if in != nil {
		state += fmt.Sprintf("\nMAINPID=%d", os.Getpid())
	}
	tellSystemd(s.log, state)
	return s.drain(b, h, s.wait(b, h))
}

// inherit takes the sockets of another process, if that is wanted and there is one.
func (s service) inherit() (*inheritance, error) {
	if !s.takeover {
		return nil, nil
	}
	if !s.config.Handover.Enabled() {
		return nil, errors.New("--takeover needs handover.path in the configuration")
	}
	in, err := takeOver(s.config.Handover.Path)
	switch {
	case err != nil:
		return nil, err
	case in == nil:
		s.log.Info().Str("path", s.config.Handover.Path).Msg("nobody to take over from")
	default:
		s.log.Info().Int("pid", in.from.PID).Int("sockets", len(in.from.Sockets)).Msg("taking over")
	}
	return in, nil
}

// start starts b, and ends the hand-over of in. It listens for the next one.
func (s service) start(b *bridge, in *inheritance) (h *handover, err error) {
	if err := b.start(); err != nil {
		return nil, err
	}
	if s.started != nil {
		if err := s.started(b); err != nil {
			return nil, err
		}
	}
	if in != nil {
		if err := s.awaitReady(b, in); err != nil {
			return nil, err
		}
		if err := in.finish(s.log); err != nil {
			return nil, err
		}
	}
	if s.config.Handover.Enabled() {
		if h, err = listenHandover(s.config.Handover.Path, b); err != nil {
			if in == nil {
				return nil, err
			}
			// The old process is going: to serve is more than to be replaced one day.
			s.log.Error().Err(err).Msg("this process cannot be taken over from")
		}
	}
	if in != nil {
		s.log.Info().Int("pid", in.from.PID).Msg("taken over")
	}
	return h, nil
}

// awaitReady waits until b can serve as well as the process that it takes over from.
func (s service) awaitReady(b *bridge, in *inheritance) error {
	patience := takeoverReady
	if !in.from.Ready {
		patience = handoverStep
	}
	limit := time.After(patience)
	for {
		err := b.proxy.Ready()
		if err == nil {
			return nil
		}
		select {
		case sig := <-s.signals:
			if sig == syscall.SIGHUP || sig == syscall.SIGUSR2 {
				continue
			}
			return fmt.Errorf("take-over: %s", sig)
		case <-limit:
			if !in.from.Ready {
				return nil // neither was the other
			}
			return fmt.Errorf("take-over: not ready after %s: %w", patience, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

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

func tellSystemd(log zerolog.Logger, state string) {
	if err := notifySystemd(state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("service manager not told")
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
