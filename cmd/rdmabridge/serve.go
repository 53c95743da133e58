package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
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

Exit codes: 0 drained, 1 the file has problems or the bridge failed, 2 the file
cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			signals, stop := notify()
			defer stop()
			return failed(serve(c, newLog(cmd.ErrOrStderr(), c.Log), signals, nil))
		},
	}
	configFlag(cmd, &file)
	return cmd
}

// notify delivers the signals that end a process gently.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT)
	return ch, func() { signal.Stop(ch) }
}

// signalEcho is how long after a signal another one is taken for its echo:
// timeout(1), and shells that signal a process and its group, send each twice.
const signalEcho = 500 * time.Millisecond

// serve runs the bridge until a signal has drained it. started, which may be nil,
// is called once it listens.
func serve(c *configs.Config, log zerolog.Logger, signals <-chan os.Signal, started func(*bridge) error) error {
	b, err := newBridge(c, log)
	if err != nil {
		return err
	}
	log.Info().Str("version", buildInfo().Version).Stringer("memory", c.Memory.Budget).Msg("starting")
	if err := b.start(); err != nil {
		return errors.Join(err, b.close())
	}
	if started != nil {
		if err := started(b); err != nil {
			return errors.Join(err, b.close())
		}
	}
	if err := notifySystemd("READY=1"); err != nil {
		log.Warn().Err(err).Msg("service manager not told of the start")
	}
	s := <-signals
	log.Info().Stringer("signal", s).Stringer("timeout", b.drainIn).Msg("draining")
	if err := notifySystemd("STOPPING=1"); err != nil {
		log.Warn().Err(err).Msg("service manager not told of the end")
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		first := time.Now()
		for {
			select {
			case s := <-signals:
				if time.Since(first) < signalEcho {
					continue
				}
				cancel(errors.New("second signal: " + s.String()))
			case <-done:
			}
			return
		}
	}()
	err = b.drain(ctx)
	close(done)
	if err != nil && context.Cause(ctx) != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	cancel(nil)
	err = errors.Join(err, b.close())
	log.Info().Err(err).Msg("stopped")
	return err
}
