package main

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Reloading
//
// A file that has changed is loaded as at the start. If anything in it is wrong, or
// an address in it cannot be listened to, nothing changes. Otherwise all of it is
// applied that can be with clients connected, and what cannot be is named, and holds
// after the next start: lasting has the list. A file is good or not as a whole, what
// is kept included: a pool that the new memory.budget would carry and the old one
// does not is refused.

// maxChanges bounds the lines of one reload in the log, maxChange the length of a
// value there.
const (
	maxChanges = 64
	maxChange  = 200
)

// A reloader brings a bridge to what its file says. It belongs to serve's goroutine.
type reloader struct {
	b    *bridge
	file string
	sink *logSink // nil: level and format stay as they are
	hash [sha256.Size]byte

	applied, unchanged, refused *metrics.Counter
	last, restart               *metrics.Gauge
}

// newReloader is for a bridge whose configuration was just loaded from file.
func newReloader(b *bridge, file string, sink *logSink, hash [sha256.Size]byte) *reloader {
	m := b.metrics
	count := func(result string) *metrics.Counter {
		return m.Counter("config_reloads_total", "Times the configuration was loaded again, by what became of it.", "result", result)
	}
	r := &reloader{
		b: b, file: file, sink: sink, hash: hash,
		applied: count("applied"), unchanged: count("unchanged"), refused: count("refused"),
		last:    m.Gauge("config_last_reload_time_seconds", "Unix time at which the configuration in force was loaded."),
		restart: m.Gauge("config_restart_needed", "1 if the file has settings that hold only after a restart."),
	}
	r.last.Set(time.Now().Unix())
	return r
}

// changed is reload for a file that was seen to change, unless it was loaded since.
func (r *reloader) changed() {
	if hashFile(r.file) != r.hash {
		r.reload("file")
	}
}

// reload loads the file and applies it. why says what asked for it.
func (r *reloader) reload(why string) {
	log := r.b.log.With().Str("file", r.file).Str("why", why).Logger()
	hash := hashFile(r.file)
	next, err := configs.LoadFile(r.file, known)
	var changes, pending []configs.Change
	if err == nil {
		changes, pending, err = r.apply(next)
	}
	// What was refused is not tried again until the file changes once more.
	r.hash = hash
	if err != nil {
		r.refused.Inc()
		log.Error().Err(err).Msg("configuration refused; the one before stays in force")
		return
	}
	r.last.Set(time.Now().Unix())
	r.restart.Set(int64(min(len(pending), 1)))
	logChanges(log, zerolog.InfoLevel, changes, "setting changed")
	logChanges(log, zerolog.WarnLevel, pending, "setting needs a restart")
	if len(changes) == 0 {
		r.unchanged.Inc()
		log.Info().Int("need_restart", len(pending)).Msg("configuration loaded again: nothing to change")
		return
	}
	r.applied.Inc()
	log.Info().Int("changes", len(changes)).Int("need_restart", len(pending)).Msg("configuration loaded again")
}

// logChanges writes a line for each change.
func logChanges(log zerolog.Logger, level zerolog.Level, changes []configs.Change, message string) {
	for i, c := range changes {
		if i == maxChanges {
			log.WithLevel(level).Int("changes", len(changes)-i).Msg(message + ": more")
			return
		}
		log.WithLevel(level).Str("setting", c.Path).Str("old", shorten(c.Old)).Str("new", shorten(c.New)).Msg(message)
	}
}

func shorten(s string) string {
	if len(s) <= maxChange {
		return s
	}
	return strings.ToValidUTF8(s[:maxChange], "") + "..."
}

// apply makes next, as far as that can be, the configuration in force. changes is what
// that changed, pending what remains for a restart. An error says that nothing
// happened.
func (r *reloader) apply(next *configs.Config) (changes, pending []configs.Change, err error) {
	b := r.b
	c := effective(b.config, next)
	if err := c.Check(known); err != nil {
		return nil, nil, fmt.Errorf("with what cannot change before a restart: %w", err)
	}
	changes, pending = configs.Diff(b.config, c), configs.Diff(c, next)
	if len(changes) == 0 {
		return nil, pending, nil
	}
	if err := b.apply(c); err != nil {
		return nil, nil, err
	}
	if r.sink != nil {
		r.sink.set(c.Log)
	}
	return changes, pending, nil
}

// effective is next with the settings of old that hold for the life of a process.
func effective(old, next *configs.Config) *configs.Config {
	c := *next
	c.Memory, c.Chunks, c.Admin, c.Loops, c.Handover = old.Memory, old.Chunks, old.Admin, old.Loops, old.Handover
	c.Listeners = slices.Clone(next.Listeners)
	for i := range c.Listeners {
		l := &c.Listeners[i]
		j := slices.IndexFunc(old.Listeners, func(o configs.Listener) bool {
			return o.Name == l.Name && o.Address == l.Address && o.Transport == l.Transport
		})
		if j < 0 || !l.RDMA() {
			continue
		}
		// Its provider listens with these.
		o := &old.Listeners[j]
		l.Provider, l.IWARP = o.Provider, o.IWARP
		l.Timeouts.Start, l.Timeouts.Stall = o.Timeouts.Start, o.Timeouts.Stall
	}
	return &c
}
