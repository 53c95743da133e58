package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Judging
//
// Judge says in words what is wrong with a bridge. It compares a document with one of about half a
// minute earlier, and it is careful in three ways, because a page that cries wolf is not read.
//
// One slow Call is no trouble. A rate, a mean or a share counts only over enoughCalls Calls, and a state
// that comes and goes within seconds (a connection that is made again, a Call that waits for a moment)
// counts only if both documents have it.
//
// A trouble is named where it begins. When the storage is slow, Calls wait for credits as well, because
// those under way hold them; when the wire loses segments, the server seems slow. So the wire is judged
// first, then the server, then the credits, and what explains another hides it.
//
// An idle bridge and one that has just started have no rates, and so no troubles but those of a state.

const (
	// enoughCalls is the fewest Calls whose mean time counts. One COMMIT that waits for a disk, or the
	// first Call after a pause, would move the mean of fewer.
	enoughCalls = 20
	// shortSpan is the least time between two documents that rates are taken from, in seconds. The
	// history has a document each five seconds, so this is reached after the second.
	shortSpan = 4
	// longSpan bounds it. An older document says nothing about now.
	longSpan = 120
	// mostProblems bounds what Judge returns: an operator reads the first few.
	mostProblems = 40
)

// The codes of problems. docs/troubleshooting.md has a section for each.
const (
	CodeNotReady       = "not_ready"
	CodeDraining       = "draining"
	CodeListenerDown   = "listener_down"
	CodeUpstreamDown   = "upstream_down"
	CodeProtocol       = "upstream_protocol"
	CodeTLS            = "upstream_tls"
	CodeNoRoute        = "program_without_route"
	CodeDegraded       = "upstream_degraded"
	CodeEjected        = "endpoint_ejected"
	CodeStarved        = "credits_starved"
	CodeServerSlow     = "server_slow"
	CodeStuck          = "calls_stuck"
	CodeClientSlow     = "client_slow"
	CodeMemoryShort    = "memory_short"
	CodeClientsRefused = "clients_refused"
	CodeRateLimited    = "rate_limited"
	CodeWireLossy      = "wire_lossy"
	CodeSlowStart      = "slow_start"
	CodeRestartNeeded  = "config_restart_needed"
	CodeConfigRefused  = "config_refused"
	CodeDescriptors    = "descriptors_short"
	CodeCertificate    = "certificate_expires"
	CodeCA             = "ca_expires"
	CodeCRL            = "crl_overdue"
	CodeTLSFiles       = "tls_files_refused"
)

// Codes are the codes of all problems.
var Codes = []string{
	CodeNotReady, CodeDraining, CodeListenerDown, CodeUpstreamDown, CodeProtocol, CodeTLS, CodeNoRoute, CodeDegraded, CodeEjected, CodeStarved, CodeServerSlow, CodeStuck,
	CodeClientSlow, CodeMemoryShort, CodeClientsRefused, CodeRateLimited, CodeWireLossy, CodeSlowStart, CodeRestartNeeded,
	CodeConfigRefused, CodeDescriptors, CodeCertificate, CodeCA, CodeCRL, CodeTLSFiles,
}

// Judge returns what is wrong in now, the worst first. before is a document of about half a minute
// earlier, or nil if there is none.
func Judge(now, before *Document) []Problem {
	j := judge{now: now, before: before}
	if before != nil {
		j.span = now.Time.Sub(before.Time).Seconds()
	}
	if j.span < shortSpan || j.span > longSpan || before.Process != now.Process {
		j.before, j.span = nil, 0
	}
	j.listeners()
	for i := range now.Upstreams {
		j.upstream(&now.Upstreams[i])
	}
	j.routes()
	j.clients()
	j.memory()
	j.process()
	order := map[Severity]int{Critical: 0, Warning: 1, Notice: 2}
	slices.SortStableFunc(j.found, func(a, b Problem) int { return cmp.Compare(order[a.Severity], order[b.Severity]) })
	if len(j.found) > mostProblems {
		j.found = j.found[:mostProblems]
	}
	return j.found
}

// A judge is the state of one Judge.
type judge struct {
	now    *Document
	before *Document // nil if there is none to compare with
	span   float64   // seconds between both; 0 if before is nil
	found  []Problem
	down   bool // an upstream is, and a problem says so
}

// add adds a problem. text and advice are whole sentences; commands in advice stand between backquotes.
func (j *judge) add(s Severity, code, subject, text, advice string) {
	j.found = append(j.found, Problem{Severity: s, Code: code, Subject: subject, Text: text, Advice: advice})
}

// has reports whether a problem of this code and subject was found. An empty subject stands for all.
func (j *judge) has(code, subject string) bool {
	return slices.ContainsFunc(j.found, func(p Problem) bool { return p.Code == code && (subject == "" || p.Subject == subject) })
}

// listeners judges the listeners.
func (j *judge) listeners() {
	for i := range j.now.Listeners {
		l := &j.now.Listeners[i]
		if l.Unreachable != "" {
			j.add(Critical, CodeListenerDown, l.Name, fmt.Sprintf("Listener %s at %s accepts no connections: %s. New clients cannot connect.", l.Name, l.Address, stop(l.Unreachable)),
				"Look for the reason in the log, and at who else listens with `ss -ltnp`.")
		}
		j.tlsFiles(l.TLS, tlsOwner{"listener", l.Name, "clients refuse it when they begin TLS", "clients"})
		old := j.listenerBefore(l.Name)
		if old == nil {
			continue
		}
		refused := grownBy(l.Refused, old.Refused)
		for _, ordinary := range []string{"idle", "draining"} {
			delete(refused, ordinary)
		}
		if n := total(refused); n > 0 {
			severity := Warning
			if n == refused["address"]+refused["port"] {
				severity = Notice // what the operator has asked for
			}
			j.add(severity, CodeClientsRefused, l.Name, fmt.Sprintf("Listener %s refused or closed %s in the last %s: %s.", l.Name, count(n, "connection"), seconds(j.span), reasons(refused)),
				"The log names each client and the reason; `rdmabridge stats` shows the limits that are near.")
		}
		// Both: a client that is over its rate for a moment is what a rate limit is for.
		if n := rated(l); n > 0 && rated(old) > 0 {
			j.add(Notice, CodeRateLimited, l.Name, fmt.Sprintf("Listener %s holds %s to the rate that is configured.", l.Name, count(uint64(n), "client")),
				"`rdmabridge clients --sort waiting` shows which; the settings are `rates` of the listener, and `rate` of its rules.")
		}
	}
}

// rated is how many clients of l wait because of a rate limit of the listener.
func rated(l *Listener) int {
	return l.Paused["client_rate"] + l.Paused["listener_rate"] + l.Paused["rule_rate"]
}

// memory judges the memory of messages.
func (j *judge) memory() {
	m := &j.now.Memory
	if j.before == nil {
		return
	}
	old := &j.before.Memory
	var short []string
	for _, a := range m.Accounts {
		// Nine tenths: the accounts share what they do not use, so a full one is the one that is short.
		if a.Waiting > 0 || a.Limit > 0 && a.Used >= a.Limit/10*9 {
			short = append(short, fmt.Sprintf("%s (%s of %s)", strings.ReplaceAll(a.Name, "_", " "), size(a.Used), size(a.Limit)))
		}
	}
	of := ""
	if len(short) > 0 {
		of = " Short is the memory for " + strings.Join(short, ", ") + "."
	}
	advice := "Raise `memory.budget`, or lower what clients may have outstanding: docs/memory.md. `rdmabridge clients --sort waiting` shows who waits."
	switch {
	case m.Refused > old.Refused:
		j.add(Warning, CodeMemoryShort, "", fmt.Sprintf("Memory for messages ran out %s in the last %s; %s of %s are in use.%s", times(m.Refused-old.Refused), seconds(j.span), size(m.Used), size(m.Budget), of), advice)
	// Both: connections wait for a moment whenever a burst comes.
	case m.Waiting > 0 && old.Waiting > 0:
		j.add(Warning, CodeMemoryShort, "", fmt.Sprintf("%s for memory, and the bridge does not read from them; %s of %s are in use.%s", waits(m.Waiting, "connection"), size(m.Used), size(m.Budget), of), advice)
	}
}

// process judges the process and its configuration.
func (j *judge) process() {
	d := j.now
	// A bridge needs a moment to connect; three seconds are more than the handshake of any provider.
	if d.State == NotReady && !j.down && d.Time.Sub(d.Started) >= 3*time.Second {
		j.add(Critical, CodeNotReady, "", fmt.Sprintf("The bridge is not ready: %s.", stop(d.NotReady)), "`rdmabridge upstreams` shows what is missing.")
	}
	if d.State == Draining {
		j.add(Notice, CodeDraining, "", "The bridge drains: it accepts no new clients, answers the Calls that it has read, and then ends.", "")
	}
	if d.Config.Refused != "" {
		j.add(Warning, CodeConfigRefused, d.Config.File, fmt.Sprintf("The configuration file was refused, and the one before it stays in force: %s.", stop(firstLine(d.Config.Refused))),
			fmt.Sprintf("`rdmabridge check %s` shows every problem of the file.", orFile(d.Config.File)))
	}
	if d.Config.RestartNeeded {
		j.add(Notice, CodeRestartNeeded, d.Config.File, "The configuration file has settings that take effect only after a restart.", "The log names them. A restart by hand-over (`kill -USR2`, handover.path) loses no Call.")
	}
	// Nine tenths: the rest goes fast when clients reconnect.
	if s := d.Sockets; s.Limit > 0 && s.Used >= s.Limit-s.Limit/10 {
		severity := Warning
		if s.Used >= s.Limit {
			severity = Critical
		}
		j.add(severity, CodeDescriptors, "", fmt.Sprintf("Clients use %d of the %d file descriptors that they may have. Beyond them, a connection is closed for each new one.", s.Used, s.Limit), "Raise RLIMIT_NOFILE (LimitNOFILE= in the unit), then restart.")
	}
}

func (j *judge) listenerBefore(name string) *Listener {
	if j.before != nil {
		for i := range j.before.Listeners {
			if j.before.Listeners[i].Name == name {
				return &j.before.Listeners[i]
			}
		}
	}
	return nil
}

func (j *judge) upstreamBefore(name string) *Upstream {
	if j.before != nil {
		for i := range j.before.Upstreams {
			if j.before.Upstreams[i].Name == name {
				return &j.before.Upstreams[i]
			}
		}
	}
	return nil
}
