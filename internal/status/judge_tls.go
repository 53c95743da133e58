package status

import (
	"fmt"
	"time"
)

// A tlsOwner is a listener or an upstream, and what becomes of it when files of its TLS expire.
type tlsOwner struct {
	kind, name string
	refused    string // when its own certificate has expired
	untrusted  string // when a CA has: whose certificates are not trusted any more
}

func (o *tlsOwner) String() string { return o.kind + " " + o.name }

// tlsFiles judges the files of a listener or an upstream. The gauges tls_expiry_timestamp_seconds and
// tls_renew_by_timestamp_seconds, and so the alerts, have the same times.
func (j *judge) tlsFiles(f *TLSFiles, o tlsOwner) {
	if f == nil {
		return
	}
	mend := ""
	if f.Refused != "" {
		j.add(Warning, CodeTLSFiles, o.name, fmt.Sprintf("The files of TLS of %s have changed and cannot be used: %s. What they had before stays in force.", &o, stop(firstLine(f.Refused))),
			fmt.Sprintf("Mend the files; `rdmabridge check %s` says what is wrong with them.", orFile(j.now.Config.File)))
		mend = "Mend the files, which the bridge has refused."
	}
	advice := func(s string) string {
		if mend != "" {
			return mend
		}
		return s + ": the bridge reads it within seconds, and connections stay."
	}
	now := j.now.Time
	renew := advice("Put a new certificate with its key in place of the old files")
	switch {
	case f.Expires == nil:
	case !now.Before(*f.Expires):
		j.add(Critical, CodeCertificate, o.name, fmt.Sprintf("The certificate of %s expired at %s: %s. Connections that there are stay.", &o, utc(*f.Expires), o.refused), renew)
	case f.RenewBy != nil && now.After(*f.RenewBy):
		j.add(Warning, CodeCertificate, o.name, fmt.Sprintf("The certificate of %s expires in %s, at %s. From then on %s.", &o, until(now, *f.Expires), utc(*f.Expires), o.refused), renew)
	}
	renew = advice("Put its successor into the file `ca`, and remove it when no certificate that it has signed is in use")
	switch ca := f.CA; {
	case ca == nil || !now.After(ca.RenewBy):
	case !now.Before(ca.End):
		j.add(Critical, CodeCA, o.name, fmt.Sprintf("All CAs of %s have expired, the last at %s: %s are refused. Connections that there are stay.", &o, utc(ca.End), o.untrusted), renew)
	case !now.Before(ca.Expires):
		j.add(Warning, CodeCA, o.name, fmt.Sprintf("The CA %q of %s expired at %s: %s are refused if it has signed their certificates.", ca.Name, &o, utc(ca.Expires), o.untrusted), renew)
	default:
		j.add(Warning, CodeCA, o.name, fmt.Sprintf("The CA %q of %s expires in %s, at %s. From then on %s are refused if it has signed their certificates.", ca.Name, &o, until(now, ca.Expires), utc(ca.Expires), o.untrusted), renew)
	}
	if l := f.CRL; l != nil && now.After(l.RenewBy) {
		j.add(Warning, CodeCRL, o.name, fmt.Sprintf("The list of revoked certificates of %q, for %s, should have been replaced at %s. It stays in force, and does not know what was revoked since.", l.Name, &o, utc(l.Expires)),
			advice("Put the CA's present list into the file `crl`"))
	}
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func until(now, t time.Time) string { return seconds(t.Sub(now).Seconds()) }
