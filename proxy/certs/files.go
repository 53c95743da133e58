// Package certs tells what becomes of the files of TLS of listeners and upstreams: metrics, log and status.
package certs

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Definition is the metrics of the files of listeners, or of upstreams.
type Definition struct {
	Reloads                  metrics.CounterDef
	Expiry, RenewBy, Refused metrics.GaugeDef
}

// The metrics of the files of listeners and of upstreams.
var (
	OfListener = Definition{
		metrics.ListenerTLSReloads, metrics.ListenerTLSExpiry, metrics.ListenerTLSRenewBy, metrics.ListenerTLSFilesRefused,
	}
	OfUpstream = Definition{
		metrics.UpstreamTLSReloads, metrics.UpstreamTLSExpiry, metrics.UpstreamTLSRenewBy, metrics.UpstreamTLSFilesRefused,
	}
)

// Files are the metrics of the files of one listener or upstream.
type Files struct{ loaded, refused *metrics.Counter }

// Counted reports whether Count was called.
func (x *Files) Counted() bool { return x.loaded != nil }

// Count makes the counters of the files of the listener or upstream name. Refresh needs them.
func (x *Files) Count(m *metrics.Registry, d Definition, name string) {
	x.loaded, x.refused = m.Counter(d.Reloads, name, "loaded"), m.Counter(d.Reloads, name, "refused")
}

// Describe makes the gauges of the files of the listener or upstream name. condition says how the files are that are in
// force for the name now.
func Describe(m *metrics.Registry, d Definition, name string, condition func() tlsconf.Condition) {
	at := func(g metrics.GaugeDef, file string, of func(*tlsconf.Condition) time.Time) {
		m.GaugeFunc(g, func() float64 {
			c := condition()
			if t := of(&c); !t.IsZero() {
				return float64(t.Unix())
			}
			return 0
		}, name, file)
	}
	at(d.Expiry, "certificate", func(c *tlsconf.Condition) time.Time { return c.Own.End })
	at(d.Expiry, "ca", func(c *tlsconf.Condition) time.Time { return c.CA.End })
	at(d.RenewBy, "certificate", func(c *tlsconf.Condition) time.Time { return c.Own.Renewal })
	at(d.RenewBy, "ca", func(c *tlsconf.Condition) time.Time { return c.CA.Renewal })
	at(d.RenewBy, "crl", func(c *tlsconf.Condition) time.Time { return c.CRL.Renewal })
	m.GaugeFunc(d.Refused, func() float64 { return float64(metrics.Truth(condition().Fault != "")) }, name)
}

// A Refresher is a tlsconf.Server or tlsconf.Client.
type Refresher interface {
	Refresh(now bool) (tlsconf.Refreshed, error)
}

// Refresh looks at the files of r, and reports whether it trusts others than before.
func (x *Files) Refresh(log *zerolog.Logger, r Refresher, now bool) (trust bool) {
	done, err := r.Refresh(now)
	switch {
	case err != nil:
		x.refused.Inc()
		log.Error().Str("event", "tls_files_refused").Err(err).
			Msg("the files of TLS have changed and cannot be used; what they had before stays in force")
	case done.Changed:
		x.loaded.Inc()
		log.Info().Str("event", "tls_files_loaded").Bool("trust", done.Trust).
			Msg("the files of TLS have changed; later connections use them")
		for _, w := range done.Warnings {
			log.Warn().Str("event", "tls_files_warning").Str("warning", w).
				Msg("the files of TLS are in force, and have a fault")
		}
	}
	return done.Trust
}

// Status describes the files of a listener or upstream.
func Status(c tlsconf.Condition) *status.TLSFiles {
	d := &status.TLSFiles{Refused: c.Fault}
	if c.Own != (tlsconf.Term{}) {
		d.Expires, d.RenewBy = &c.Own.End, &c.Own.Renewal
	}
	d.CA, d.CRL = term(c.CA), term(c.CRL)
	return d
}

func term(t tlsconf.Term) *status.TLSTerm {
	if t == (tlsconf.Term{}) {
		return nil
	}
	return &status.TLSTerm{Name: t.Name, Expires: t.Expiry, RenewBy: t.Renewal, End: t.End}
}

// PeerStatus describes TLS with a peer that has shown this identity.
func PeerStatus(i *tlsconf.Identity) *status.TLS {
	if i == nil {
		return new(status.TLS)
	}
	return &status.TLS{
		Identity: i.Name(), Subject: i.Subject, Issuer: i.Issuer, Serial: i.Serial, Names: i.Names(), Expires: &i.NotAfter,
	}
}

// An Identity is who a client's certificate says it is, as it is described. It may be nil. observe.Identity.
type Identity tlsconf.Identity

// Names is part of observe.Identity.
func (i *Identity) Names() []string { return (*tlsconf.Identity)(i).Names() }

// Status is part of observe.Identity.
func (i *Identity) Status() *status.TLS { return PeerStatus((*tlsconf.Identity)(i)) }
