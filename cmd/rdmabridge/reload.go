package main

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Reloading
//
// The bridge loads a changed file as it does at the start. If the file has a problem, or if a
// listener cannot listen at its address, nothing changes. Otherwise the bridge applies every
// setting that can change while clients are connected. It keeps the old values of the settings
// that effective copies, and logs which changed settings need a restart. It checks the
// resulting settings together: for example, it rejects a pool that needs the new memory.budget,
// because the old budget stays in force.

// maxChanges bounds the log lines of one reload. maxChange bounds the length of a value
// in such a line.
const (
	maxChanges = 64
	maxChange  = 200
)

// A reloader applies the changes of a file to a bridge. The goroutine of service.run owns
// it.
type reloader struct {
	b     *bridge
	files []string
	flags *pflag.FlagSet    // which override settings of the files; nil if there are none
	sink  *logsink.Sink     // the sink of the bridge's logger; nil if level and format cannot change
	hash  [sha256.Size]byte // hash of the content loaded last

	applied, unchanged, refused *metrics.Counter
	last, restart               *metrics.Gauge
}

// newReloader returns a reloader for a bridge whose configuration was loaded from files
// when their content had this hash.
func newReloader(b *bridge, files []string, sink *logsink.Sink, hash [sha256.Size]byte) *reloader {
	m := b.metrics
	count := func(result string) *metrics.Counter {
		return m.Counter(metrics.ConfigReloads, result)
	}
	r := &reloader{
		b: b, files: files, sink: sink, hash: hash,
		applied: count("applied"), unchanged: count("unchanged"), refused: count("refused"),
		last:    m.Gauge(metrics.ConfigLastReloadSuccess),
		restart: m.Gauge(metrics.ConfigRestartNeeded),
	}
	r.last.Set(time.Now().Unix())
	b.setLoaded(strings.Join(files, ", "), time.Now(), false)
	return r
}

// changed reloads the file after the watcher has seen a change, and so says that it is gone. It does nothing if a signal
// has already made the bridge load that content.
func (r *reloader) changed() {
	if hashFiles(r.files) != r.hash {
		r.reload(reloadFile)
	}
}

// Why a file is loaded again.
const (
	reloadSignal = "signal"
	reloadFile   = "file"
)

// reload loads the file and applies it. It logs why. After a signal it opens the file of the access log
// again, whatever becomes of the configuration.
func (r *reloader) reload(why string) {
	names := strings.Join(r.files, ", ")
	log := r.b.log.With().Str("file", names).Str("reason", why).Logger()
	if why == reloadSignal {
		r.b.reopenLogs()
	}
	if why == reloadSignal {
		r.b.proxy.RefreshTLS(true)
	}
	hash := hashFiles(r.files)
	next, err := configs.LoadFiles(r.files, knownWith(r.flags))
	var changes, pending []configs.Change
	if err == nil {
		changes, pending, err = r.apply(next)
	}
	// A rejected file is not loaded again until its content changes.
	r.hash = hash
	if err != nil {
		r.refused.Inc()
		r.b.setRefused(err)
		log.Error().Str("event", "reload_refused").Err(err).Msg("configuration rejected; the previous one stays in force")
		return
	}
	logWarnings(log, next)
	r.last.Set(time.Now().Unix())
	r.b.setLoaded(names, time.Now(), len(pending) > 0)
	r.restart.Set(int64(min(len(pending), 1)))
	logChanges(log, zerolog.InfoLevel, "setting_changed", changes, "setting changed")
	logChanges(log, zerolog.WarnLevel, "setting_pending", pending, "setting needs a restart")
	if len(changes) == 0 {
		r.unchanged.Inc()
		log.Info().Str("event", "reload_unchanged").Int("need_restart", len(pending)).Msg("configuration reloaded: no setting to change")
		return
	}
	r.applied.Inc()
	log.Info().Str("event", "reload_applied").Int("changes", len(changes)).Int("need_restart", len(pending)).Msg("configuration reloaded")
}

// logChanges logs a line for each change.
func logChanges(log zerolog.Logger, level zerolog.Level, event string, changes []configs.Change, message string) {
	for i, c := range changes {
		if i == maxChanges {
			log.WithLevel(level).Str("event", event).Int("suppressed", len(changes)-i).Msg(message + ": further changes are not listed")
			return
		}
		log.WithLevel(level).Str("event", event).Str("setting", c.Path).Str("old", shorten(c.Old)).Str("new", shorten(c.New)).Msg(message)
	}
}

// shorten cuts a value to maxChange octets.
func shorten(s string) string {
	if len(s) <= maxChange {
		return s
	}
	return strings.ToValidUTF8(s[:maxChange], "") + "..."
}

// apply applies the settings of next that need no restart. It returns the settings that it
// changed and those that need a restart. After an error nothing has changed.
func (r *reloader) apply(next *configs.Config) (changes, pending []configs.Change, err error) {
	b := r.b
	c := effective(b.config, next)
	if err := c.Check(known); err != nil {
		return nil, nil, fmt.Errorf("the file conflicts with settings that need a restart and keep their old values: %w", err)
	}
	if err := b.hardening.permits(c, r.files); err != nil {
		return nil, nil, err
	}
	changes, pending = configs.Diff(b.config, c), configs.Diff(c, next)
	if len(changes) == 0 {
		b.show(c, pending)
		return nil, pending, nil
	}
	if err := b.apply(c); err != nil {
		return nil, nil, err
	}
	b.show(c, pending)
	if r.sink != nil {
		r.sink.Set(translate.Log(c.Log))
	}
	return changes, pending, nil
}

// effective returns next with the settings of old that cannot change during the life of
// a process.
func effective(old, next *configs.Config) *configs.Config {
	c := *next
	c.Memory, c.Chunks, c.Programs, c.Admin, c.Control, c.Loops, c.BusyPoll, c.Handover, c.Hardening, c.Identity = old.Memory, old.Chunks, old.Programs, old.Admin, old.Control, old.Loops, old.BusyPoll, old.Handover, old.Hardening, old.Identity
	c.Listeners = slices.Clone(next.Listeners)
	for i := range c.Listeners {
		l := &c.Listeners[i]
		j := slices.IndexFunc(old.Listeners, func(o configs.Listener) bool {
			return o.Name == l.Name && o.Address == l.Address && o.Transport == l.Transport
		})
		if j < 0 || !l.RDMA() {
			continue
		}
		// The provider, which is listening, was made from these settings.
		o := &old.Listeners[j]
		l.Provider, l.IWARP = o.Provider, o.IWARP
		l.Timeouts.Start, l.Timeouts.Stall = o.Timeouts.Start, o.Timeouts.Stall
	}
	return &c
}
