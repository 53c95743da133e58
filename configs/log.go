package configs

import (
	"fmt"
	"net/url"
	"path/filepath"
)

// Log configures the log, which goes to standard error, the access log and the audit log.
type Log struct {
	Level  string    `mapstructure:"level"`  // debug, info, warn or error
	Format string    `mapstructure:"format"` // auto, json or console
	Access AccessLog `mapstructure:"access"`
	Audit  AuditLog  `mapstructure:"audit"`
}

// AccessLog configures the log that has a line for each chosen Call.
type AccessLog struct {
	Mode   string   `mapstructure:"mode"`   // off, failed, slow, sampled or all
	Slower Duration `mapstructure:"slower"` // time from which a Call is slow
	Sample Fraction `mapstructure:"sample"` // of the other Calls
	Path   string   `mapstructure:"path"`   // of a file, or stderr
}

// Modes of the access log. Each chooses what those before it choose, and more.
const (
	AccessOff     = "off"
	AccessFailed  = "failed"
	AccessSlow    = "slow"
	AccessSampled = "sampled"
	AccessAll     = "all"

	// AccessStderr is a Path.
	AccessStderr = "stderr"
)

// Enabled reports whether the file asks for an access log.
func (a *AccessLog) Enabled() bool { return a.Mode != AccessOff }

// AuditLog configures the log that has a line for each operation that changes something, opens a file or is denied.
type AuditLog struct {
	Operations []string `mapstructure:"operations"` // changes, opens or denials; empty: there is no such log
	Output     string   `mapstructure:"output"`     // file or syslog
	Path       string   `mapstructure:"path"`       // of a file
	Syslog     string   `mapstructure:"syslog"`     // path of a socket, or URL of a server; see SyslogServer
	Clients    []Prefix `mapstructure:"clients"`    // empty: all
	UIDs       []IDs    `mapstructure:"uids"`       // empty: all
	Exports    []string `mapstructure:"exports"`    // paths; empty: all
	OnFailure  string   `mapstructure:"on_failure"` // drop or deny
}

// Operations of the audit log, and what it may do when it cannot be written.
const (
	AuditChanges = "changes"
	AuditOpens   = "opens"
	AuditDenials = "denials"
	AuditFile    = "file"
	AuditSyslog  = "syslog"
	AuditDrop    = "drop"
	AuditDeny    = "deny"
)

// Enabled reports whether the file asks for an audit log.
func (a *AuditLog) Enabled() bool { return len(a.Operations) > 0 }

// SameOutput reports whether the lines of a and b go to the same place.
func (a *AuditLog) SameOutput(b *AuditLog) bool {
	return a.Output == b.Output && a.Path == b.Path && a.Syslog == b.Syslog
}

// SyslogServer returns the network and the address of the server of syslog, as package net has them.
func (a *AuditLog) SyslogServer() (network, address string, err error) {
	if filepath.IsAbs(a.Syslog) {
		return "unixgram", a.Syslog, nil
	}
	u, err := url.Parse(a.Syslog)
	if err != nil || u.Scheme != "udp" && u.Scheme != "tcp" || u.Hostname() == "" || u.Port() == "" || *u != (url.URL{Scheme: u.Scheme, Host: u.Host}) {
		return "", "", fmt.Errorf("%q is not a server of syslog; write /dev/log, or one such as udp://loghost:514 or tcp://loghost:601", a.Syslog)
	}
	return u.Scheme, u.Host, nil
}

func (a *AuditLog) validate(r *report) {
	for i, o := range a.Operations {
		r.oneOf(fmt.Sprintf("log.audit.operations[%d]", i), o, AuditChanges, AuditOpens, AuditDenials)
	}
	r.oneOf("log.audit.output", a.Output, AuditFile, AuditSyslog)
	if _, _, err := a.SyslogServer(); err != nil {
		r.addf("log.audit.syslog", "%v", err)
	}
	r.oneOf("log.audit.on_failure", a.OnFailure, AuditDrop, AuditDeny)
	for i, e := range a.Exports {
		r.shownPath(fmt.Sprintf("log.audit.exports[%d]", i), e)
	}
	switch {
	case a.Output == AuditSyslog && a.Path != none:
		r.addf("log.audit.path", "this setting needs log.audit.output: file; remove one of them")
	case a.Enabled() && a.Output != AuditSyslog && !filepath.IsAbs(a.Path):
		r.addf("log.audit.path", "%q is not an absolute path; write one such as /var/log/rdmabridge/audit.log", a.Path)
	case !a.Enabled() && a.Path != none:
		r.addf("log.audit.path", "this setting needs log.audit.operations; write some, such as [changes], or remove this setting")
	}
}

func (l *Log) validate(r *report) {
	r.oneOf("log.level", l.Level, "debug", "info", "warn", "error")
	r.oneOf("log.format", l.Format, FormatAuto, FormatJSON, FormatConsole)
	a := &l.Access
	r.oneOf("log.access.mode", a.Mode, AccessOff, AccessFailed, AccessSlow, AccessSampled, AccessAll)
	r.finite("log.access.slower", a.Slower)
	l.Audit.validate(r)
	if a.Path != AccessStderr && !filepath.IsAbs(a.Path) {
		r.addf("log.access.path", "%q is not an absolute path; write stderr, or a path such as /var/log/rdmabridge/access.log", a.Path)
	}
	if l.Audit.Enabled() && filepath.IsAbs(a.Path) && filepath.Clean(a.Path) == filepath.Clean(l.Audit.Path) {
		r.addf("log.audit.path", "%s is log.access.path, too; write another path", l.Audit.Path)
	}
}

// Tracing sends a span for each sampled Call to an OpenTelemetry collector.
type Tracing struct {
	Endpoint string   `mapstructure:"endpoint"` // URL of the collector's OTLP over HTTP, or none
	Sample   Fraction `mapstructure:"sample"`   // of the Calls that are not slow
	Slower   Duration `mapstructure:"slower"`   // time from which each Call is sampled, or none
}

// Enabled reports whether the file asks for traces.
func (t *Tracing) Enabled() bool { return t.Endpoint != none }

func (t *Tracing) validate(k Known, r *report) {
	if !t.Enabled() {
		return
	}
	if k.Tracing != nil {
		if err := k.Tracing(); err != nil {
			r.addf("tracing.endpoint", "%v; write none, or remove this setting", err)
			return
		}
	}
	u, err := url.Parse(t.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		r.addf("tracing.endpoint", "%q is not the URL of a collector; write one such as http://127.0.0.1:4318, or none", t.Endpoint)
	}
}
