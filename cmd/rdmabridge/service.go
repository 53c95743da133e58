package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
)

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

// serve runs the bridge until a signal has drained it. started, which may be nil,
// is called once it listens.
func serve(c *configs.Config, log zerolog.Logger, signals <-chan os.Signal, started func(*bridge) error) error {
	return service{config: c, log: log, signals: signals, started: started}.run()
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
