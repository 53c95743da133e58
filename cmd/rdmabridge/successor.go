package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// program is this process's binary by name, not by what that name leads to now: a
// successor is what has been installed since.
var program = func() string {
	p, err := exec.LookPath(os.Args[0])
	if err != nil {
		return os.Args[0]
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}()

// A successor is a process that is to take over from this one, and that this one
// starts. There is one at a time.
type successor struct{ running atomic.Bool }

// start starts one: this process's command line, with --takeover.
func (s *successor) start(log zerolog.Logger) {
	if !s.running.CompareAndSwap(false, true) {
		log.Warn().Msg("SIGUSR2: a successor is starting already")
		return
	}
	args := slices.Clone(os.Args[1:])
	if !slices.Contains(args, "--takeover") {
		args = append(args, "--takeover")
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		s.running.Store(false)
		log.Error().Err(err).Msg("successor not started; this process goes on")
		return
	}
	log.Info().Int("pid", cmd.Process.Pid).Str("program", program).Msg("successor started")
	go func() {
		err := cmd.Wait() // after a hand-over this process does not live to see it
		s.running.Store(false)
		log.Error().Int("pid", cmd.Process.Pid).Err(err).Msg("successor ended; this process goes on")
	}()
}
