package status

import (
	"fmt"
	"time"
)

// tlsFiles judges the files of a listener or an upstream, which kind says. then is what becomes of a certificate that
// has expired.
func (j *judge) tlsFiles(f *TLSFiles, kind, name, then string) {
	if f == nil {
		return
	}
	advice := "Put a new certificate with its key in place of the old files: the bridge reads them within seconds, and connections stay."
	if f.Refused != "" {
		j.add(Warning, CodeTLSFiles, name, fmt.Sprintf("The files of TLS of %s %s have changed and cannot be used: %s. What they had before stays in force.", kind, name, stop(firstLine(f.Refused))),
			fmt.Sprintf("Mend the files; `rdmabridge check %s` says what is wrong with them.", orFile(j.now.Config.File)))
		advice = "Mend the files, which the bridge has refused."
	}
	switch {
	case f.Expires == nil:
	case !j.now.Time.Before(*f.Expires):
		j.add(Critical, CodeCertificate, name, fmt.Sprintf("The certificate of %s %s expired at %s: %s. Connections that there are stay.", kind, name, f.Expires.UTC().Format(time.RFC3339), then), advice)
	case f.RenewBy != nil && j.now.Time.After(*f.RenewBy):
		j.add(Warning, CodeCertificate, name, fmt.Sprintf("The certificate of %s %s expires in %s, at %s. From then on %s.", kind, name, seconds(f.Expires.Sub(j.now.Time).Seconds()), f.Expires.UTC().Format(time.RFC3339), then), advice)
	}
}
