package main

import (
	"context"
	"crypto/sha256"
	"errors"
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
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the bridge",
		Long: `Serve runs the bridge that a configuration describes. SIGTERM or SIGINT drains:
nobody new is let in, Calls in flight are answered, idle connections are closed;
a second signal, half a second later or more, or drain.timeout, cuts what is left.

SIGHUP loads the file again, as does a change of it: reload.watch says how often it
is looked at. A file with problems is refused whole. The log has every setting that
changed, and those that need a restart.

Exit codes: 0 drained, 1 the file has problems or the bridge failed, 2 the file
cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hash, watched := hashFile(file), newWatcher(file)
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			signals, stop := notify()
			defer stop()
			sink := newLogSink(cmd.ErrOrStderr(), c.Log)
			return failed(service{
				config: c, log: sink.logger(), signals: signals,
				file: file, hash: hash, watcher: watched, sink: sink,
			}.run())
		},
	}
	configFlag(cmd, &file)
	return cmd
}

// notify delivers the signals that end a process gently, and the one for its file.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
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
}

// run runs the bridge until a signal has drained it.
func (s service) run() error {
	b, err := newBridge(s.config, s.log)
	if err != nil {
		return err
	}
	s.log.Info().Str("version", buildInfo().Version).Stringer("memory", s.config.Memory.Budget).Msg("starting")
	if err := b.start(); err != nil {
		return errors.Join(err, b.close())
	}
	if s.started != nil {
		if err := s.started(b); err != nil {
			return errors.Join(err, b.close())
		}
	}
	tellSystemd(s.log, "READY=1")
	sig := s.wait(b)
	return s.drain(b, sig)
}

// wait reloads the file when it is asked to or the file changes, and returns when a
// signal says that it is over.
func (s service) wait(b *bridge) os.Signal {
	var r *reloader
	changed := make(chan struct{}, 1)
	if s.file != "" {
		r = newReloader(b, s.file, s.sink, s.hash)
		var every atomic.Int64
		every.Store(int64(b.config.Reload.Watch))
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			s.watcher.watch(func() time.Duration { return time.Duration(every.Load()) }, changed, stop)
		}()
		defer func() {
			close(stop)
			<-stopped
		}()
		for {
			select {
			case sig := <-s.signals:
				if sig != syscall.SIGHUP {
					return sig
				}
				tellSystemd(s.log, reloading())
				r.reload("signal")
				tellSystemd(s.log, "READY=1")
			case <-changed:
				r.changed()
			}
			every.Store(int64(b.config.Reload.Watch))
		}
	}
	for {
		if sig := <-s.signals; sig != syscall.SIGHUP {
			return sig
		}
		s.log.Warn().Msg("SIGHUP: there is no file to load again")
	}
}

func tellSystemd(log zerolog.Logger, state string) {
	if err := notifySystemd(state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("service manager not told")
	}
}

// drain ends the bridge after sig.
func (s service) drain(b *bridge, sig os.Signal) error {
	log, signals := s.log, s.signals
	log.Info().Stringer("signal", sig).Stringer("timeout", b.drainIn).Msg("draining")
	tellSystemd(log, "STOPPING=1")
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		first := time.Now()
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGHUP || time.Since(first) < signalEcho {
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
