// Package tlsconf makes configurations for TLS, as RFC 9289 wants it for RPC, of certificates, keys, CAs
// and lists of revoked certificates in files, and makes them again when the files change.
//
// A [Server] is for a listener, a [Client] for an upstream. Each gives out a tcpframe.TLS that never changes
// itself: Refresh makes another one for later connections. The connections that there are keep theirs,
// and [Server.Recheck] and [Client.Recheck] say whether their peers would be trusted now.
//
// # Trust
//
// Package tlsconf verifies the peer's certificate itself, in tls.Config.VerifyConnection, for both roles. So
// a resumed session is verified as a new one is, against the CAs, the revoked certificates and the names of
// the configuration that resumes it; every refusal has a reason that can be counted; and certificates for
// the purposes of RFC 9289 Section 5.2.1.1, which package x509 does not know, are good.
//
// # Session tickets
//
// A configuration has keys of its own for session tickets, which crypto/tls replaces every day. Refresh
// makes a configuration with new keys, so that nobody resumes a session that began under other CAs.
package tlsconf

import (
	"crypto/tls"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Refreshed is what Refresh has found.
type Refreshed struct {
	Changed  bool     // another configuration is in force
	Trust    bool     // with other CAs or other revoked certificates: connections have to be checked again
	Warnings []string // about the new files
}

// base is the part of a configuration that both roles have. tcpframe.NewTLS adds what RFC 9289 demands.
func base() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }

// refuse returns the error of a handshake that is refused for r.
func refuse(r tcpframe.TLSReason, err error) error { return &tcpframe.TLSError{Reason: r, Err: err} }
