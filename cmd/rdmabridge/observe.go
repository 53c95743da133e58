package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/accesslog"
	"github.com/rdmabridge/rdmabridge/internal/audit"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// observers are what looks at Calls: the access log, the audit log, the traces, and what learns names. The
// goroutine of service.run owns them.
type observers struct {
	access *accesslog.Log // nil for none
	tracer tracer         // nil for none
	names  *learner       // nil for none
	audit  *auditor       // nil for none
}

// An auditor writes the audit log, as one of the Taps of a bridge.
type auditor struct {
	*audit.Log
	remove func() // from the Taps
}

func (a *auditor) close() {
	a.remove()
	a.Close()
}

// A learner learns names, as one of the Taps of a bridge.
type learner struct {
	*names.Watch
	remove func() // from the Taps
}

func (l *learner) close() {
	l.remove()
	l.Close()
}

// A tracer sends spans of Calls.
type tracer interface {
	observe.Observer
	Close() // sends what waits, for a bounded time
}

// both is an Observer that has two.
type both [2]observe.Observer

// Wants implements observe.Observer. Observe asks each of the two.
func (both) Wants(*observe.CallRecord) bool { return true }

// Observe implements observe.Observer.
func (b both) Observe(r *observe.CallRecord) {
	for _, o := range b {
		if o.Wants(r) {
			o.Observe(r)
		}
	}
}

// observer returns what the proxy is to have, nil if nothing looks at Calls.
func (o *observers) observer() observe.Observer {
	switch {
	case o.access != nil && o.tracer != nil:
		return both{o.access, o.tracer}
	case o.access != nil:
		return o.access
	case o.tracer != nil:
		return o.tracer
	}
	return nil
}

// prepareObservers opens what the access log, the traces and the names of next need that those in force do not
// have. Commit puts them in force; abandon gives them up.
func (b *bridge) prepareObservers(next *configs.Config) (commit, abandon func(), err error) {
	access, err := b.prepareAccessLog(&next.Log.Access)
	if err != nil {
		return nil, nil, err
	}
	newTracer, changed := b.observers.tracer, b.observers.tracer == nil || next.Tracing != b.traced
	if changed {
		newTracer = nil
		if next.Tracing.Enabled() {
			if newTracer, err = startTracer(&next.Tracing, b.log, b.metrics); err != nil {
				if access != b.observers.access && access != nil {
					access.Close()
				}
				return nil, nil, err
			}
		}
	}
	newNames, err := b.prepareNames(&next.Names)
	fresh := observers{access: access, tracer: newTracer, names: newNames}
	var auditTo audit.Output
	if err == nil {
		fresh.audit, auditTo, err = b.prepareAudit(&next.Log.Audit, &next.Names)
	}
	if err != nil {
		fresh.closeExcept(b.observers)
		return nil, nil, err
	}
	commit = func() {
		old, uncounted := b.observers, b.named.Counted()
		b.observers, b.accessed, b.traced, b.named, b.audited = fresh, next.Log.Access, next.Tracing, next.Names, next.Log.Audit
		b.names.Store(fresh.names.watch())
		b.paged.Store(next.Names.Page == configs.On)
		if fresh.names != nil {
			fresh.names.Count(next.Names.Metrics)
		}
		b.proxy.SetObserver(b.observers.observer())
		if access != nil {
			access.Set(translate.AccessLog(&next.Log.Access))
		}
		if fresh.audit != nil {
			fresh.audit.Set(translate.Audit(&next.Log.Audit, &next.Names), auditTo)
		}
		old.closeExcept(b.observers)
		for _, e := range uncounted {
			if !slices.Contains(next.Names.Counted(), e) {
				b.metrics.Forget("export", e)
			}
		}
	}
	abandon = func() {
		fresh.closeExcept(b.observers)
		if auditTo != nil {
			_ = auditTo.Close()
		}
	}
	return commit, abandon, nil
}

// openAudit opens what the lines of the audit log go to.
func openAudit(c *configs.AuditLog) (audit.Output, error) {
	if c.Output != configs.AuditSyslog {
		return audit.OpenFile(c.Path)
	}
	network, address, err := c.SyslogServer()
	if err != nil {
		return nil, err
	}
	return audit.OpenSyslog(network, address), nil
}

// prepareAudit returns what writes the audit log as c says, which may be what is in force, or nil for none. If to is not
// nil, it is to write there from now on.
func (b *bridge) prepareAudit(c *configs.AuditLog, n *configs.Names) (a *auditor, to audit.Output, err error) {
	old := b.observers.audit
	if !c.Enabled() || old != nil && c.SameOutput(&b.audited) {
		if !c.Enabled() {
			old = nil
		}
		return old, nil, nil
	}
	out, err := openAudit(c)
	if err != nil {
		return nil, nil, err
	}
	if old != nil {
		return old, out, nil // so that no Call under way is left out
	}
	a = &auditor{Log: audit.Start(audit.Options{
		Choice: translate.Audit(c, n), Output: out, Loops: b.proxy.Loops(), Names: b.names.Load, Log: b.log,
		Lines: b.metrics.Counter(metrics.AuditLines), Dropped: b.metrics.Counter(metrics.AuditDroppedLines),
		Refused: b.metrics.Counter(metrics.AuditRefusedCalls),
	})}
	if a.remove, err = b.taps.Add(a); err != nil {
		a.Close()
		return nil, nil, fmt.Errorf("log.audit: %w: end one of them first", err)
	}
	return a, nil, nil
}

// hearNames is how long a process waits for the names that the one before it knows, before it serves. What comes later is
// learned, too.
const hearNames = 5 * time.Second

// prepareNames returns what learns names as c says, which may be what is in force, or nil for none.
func (b *bridge) prepareNames(c *configs.Names) (*learner, error) {
	switch {
	case c.Mode != configs.On:
		return nil, nil
	case b.observers.names != nil && c.LearnsAs(&b.named):
		return b.observers.names, nil
	}
	o := translate.Names(c)
	o.Loops, o.Missed = b.proxy.Loops(), b.metrics.Counter(metrics.NamesMissedCalls).Add
	o.Used = func(listener, export string, calls, read, written uint64) {
		b.metrics.Counter(metrics.ListenerExportCalls, listener, export).Add(calls)
		b.metrics.Counter(metrics.ListenerExportReadBytes, listener, export).Add(read)
		b.metrics.Counter(metrics.ListenerExportWrittenBytes, listener, export).Add(written)
	}
	l := &learner{Watch: names.Start(o)}
	if in := b.inherited.Names(); in != nil {
		l.Hear(in, hearNames)
	}
	var err error
	if l.remove, err = b.taps.Add(l); err != nil {
		l.Close()
		return nil, fmt.Errorf("names.mode: %w: end one of them first", err)
	}
	return l, nil
}

// watch returns what the control socket asks; nil for none.
func (l *learner) watch() *names.Watch {
	if l == nil {
		return nil
	}
	return l.Watch
}

// closeExcept closes those of o that are not in other.
func (o *observers) closeExcept(other observers) {
	if o.access != nil && o.access != other.access {
		o.access.Close()
	}
	if o.tracer != nil && o.tracer != other.tracer {
		o.tracer.Close()
	}
	if o.names != nil && o.names != other.names {
		o.names.close() // before the audit log, which gets the paths that it waits for
	}
	if o.audit != nil && o.audit != other.audit {
		o.audit.close()
	}
}

// prepareAccessLog returns the access log for c, which may be the one in force, or nil for none.
func (b *bridge) prepareAccessLog(c *configs.AccessLog) (*accesslog.Log, error) {
	if !c.Enabled() {
		return nil, nil
	}
	if old := b.observers.access; old != nil && c.Path == b.accessed.Path {
		return old, nil
	}
	o := accesslog.Options{
		Settings: translate.AccessLog(c), Log: b.log,
		Lines: b.metrics.Counter(metrics.AccessLogLines), Dropped: b.metrics.Counter(metrics.AccessLogDroppedLines),
	}
	if b.config.Handover.Enabled() {
		o.PID = os.Getpid()
	}
	switch {
	case c.Path != configs.AccessStderr:
		out, err := accesslog.OpenFile(c.Path)
		if err != nil {
			return nil, err
		}
		o.Output = out
	case b.sink != nil:
		o.Output = accesslog.Stderr(b.sink.Calls())
		o.PID = 0 // the sink adds it
	default:
		o.Output = accesslog.Stderr(os.Stderr)
	}
	return accesslog.Start(o), nil
}

// reopenLogs opens the files of the access log and the audit log again: logrotate(8) has renamed them.
func (b *bridge) reopenLogs() {
	if a := b.observers.access; a != nil {
		if err := a.Reopen(); err != nil {
			b.log.Error().Str("event", "access_log_failed").Err(err).Msg("the file of the access log cannot be opened again; the old one stays in use")
		}
	}
	if a := b.observers.audit; a != nil {
		if err := a.Reopen(); err != nil {
			b.log.Error().Str("event", "audit_log_failed").Err(err).Msg("the file of the audit log cannot be opened again; the old one stays in use")
		}
	}
}

// startObservers puts the access log and the traces of the configuration in force.
func (b *bridge) startObservers() error {
	commit, _, err := b.prepareObservers(b.config)
	if err != nil {
		return err
	}
	commit()
	return nil
}

// closeObservers ends them. No Call is under way any more.
func (b *bridge) closeObservers() {
	b.proxy.SetObserver(nil)
	old := b.observers
	b.observers = observers{}
	b.names.Store(nil)
	old.closeExcept(observers{})
}
