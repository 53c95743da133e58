package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/handover"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
)

// A service is one run of a bridge, from its start to its end.
type service struct {
	config  *configs.Config
	log     zerolog.Logger
	sink    *logsink.Sink // where log writes; a reload changes its level and format; nil if nothing can
	signals <-chan os.Signal
	started func(*bridge) error // called once the bridge listens; may be nil

	// The configuration files, for reloading. They are unset if there is none.
	files   []string          // or directories with such files
	flags   *pflag.FlagSet    // which override their settings; nil if there are none
	hash    [sha256.Size]byte // of the content of files, computed before they were loaded
	watcher *watcher          // watches files; made before they were loaded

	restrict bool // whether to take from the process what the bridge does not need
	takeover bool // whether to take over from the process at handover.path
}

// serve runs a bridge that cannot be reloaded until a signal has drained it. It calls
// started, which may be nil, once the bridge listens.
func serve(c *configs.Config, log zerolog.Logger, signals <-chan os.Signal, started func(*bridge) error) error {
	return service{config: c, log: log, signals: signals, started: started}.run()
}

// run runs the bridge until a signal has drained it or another process has taken over.
func (s service) run() error {
	c := s.config
	if s.sink != nil && c.Handover.Enabled() {
		s.sink.SayProcess()
	}
	owners := portOwners(c)
	var restrictions hardening
	if s.restrict {
		restrictions = restrictProcess(c, s.files, s.log)
	}
	in, err := s.inherit()
	if err != nil {
		return cannotStart(err, c, owners)
	}
	b, err := newBridge(c, s.log, in)
	if err != nil {
		in.Abandon()
		return cannotStart(err, c, owners)
	}
	b.sink, b.hardening = s.sink, restrictions
	available := configs.MachineMemory()
	s.log.Info().Str("event", "starting").Str("version", buildInfo().Version).Stringer("memory", c.Memory.Budget).
		Stringer("available", available).Int("loops", c.Loops).Msg("starting")
	if w := tooLittleMemory(c.Memory, available); w != "" {
		s.log.Warn().Str("event", "memory_budget_large").Msg(w)
	}
	logWarnings(s.log, c)
	h, err := s.start(b, in)
	if err != nil {
		in.Abandon() // before close, so that the other process continues at once
		return cannotStart(errors.Join(err, b.close()), c, owners)
	}
	state := "READY=1"
	if in != nil {
		state += fmt.Sprintf("\nMAINPID=%d", os.Getpid())
	}
	tellSystemd(s.log, state)
	stopWatchdog := keepWatchdog(s.log, b.proxy.LoopsAnswer)
	why := s.wait(b, h)
	stopWatchdog() // a process that drains is in the hands of TimeoutStopSec, or is not the main one any more
	return s.drain(b, h, why)
}

// logWarnings logs the warnings about c.
func logWarnings(log zerolog.Logger, c *configs.Config) {
	for _, w := range c.Warnings() {
		log.Warn().Str("event", "config_warning").Str("warning", w).Msg("configuration has a setting that is perhaps not meant")
	}
}

// inherit asks another process for its sockets. It returns nil if the command line
// does not want that, or if no process listens at handover.path.
func (s service) inherit() (*handover.Inheritance, error) {
	if !s.takeover {
		return nil, nil
	}
	if !s.config.Handover.Enabled() {
		return nil, errors.New("--takeover needs handover.path in the configuration")
	}
	in, err := handover.TakeOver(s.config.Handover.Path)
	switch {
	case err != nil:
		return nil, err
	case in == nil:
		s.log.Info().Str("event", "handover_none").Str("path", s.config.Handover.Path).Msg("no process to take over from; starting as usual")
	default:
		s.sink.SetRole(logsink.RoleNew)
		s.log.Info().Str("event", "handover_begun").Int("other_pid", in.From.PID).Int("sockets", len(in.From.Sockets)).Msg("taking over")
	}
	return in, nil
}

// start starts b, completes the hand-over from the process of in, and listens for the
// process that takes over next.
func (s service) start(b *bridge, in *handover.Inheritance) (h *handover.Server, err error) {
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
		if err := in.Finish(s.log); err != nil {
			return nil, err
		}
	}
	predecessor := 0
	if in != nil {
		predecessor = in.From.PID
	}
	b.startControl(predecessor)
	if s.config.Handover.Enabled() {
		if h, err = handover.Listen(handover.Options{Path: s.config.Handover.Path, Log: s.log, Sink: s.sink, State: b.handedOver}); err != nil {
			if in == nil {
				return nil, err
			}
			// The old process is draining: serving matters more than the next hand-over.
			s.log.Error().Str("event", "handover_failed").Err(err).Msg("no hand-over socket; no process can take over from this one")
		}
	}
	if in != nil {
		s.sink.SetRole("")
		s.log.Info().Str("event", "handover_done").Int("other_pid", in.From.PID).Msg("take-over complete")
	}
	return h, nil
}

// awaitReady waits until b is as ready as the process that it takes over from.
func (s service) awaitReady(b *bridge, in *handover.Inheritance) error {
	timeout := in.ReadyTimeout()
	deadline := time.After(timeout)
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
			return fmt.Errorf("take-over: stopped by signal %s", sig)
		case <-deadline:
			if !in.From.Ready {
				return nil // the old process was not ready either
			}
			return fmt.Errorf("take-over: not ready after %s: %w", timeout, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
