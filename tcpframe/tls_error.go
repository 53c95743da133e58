package tcpframe

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A TLSReason says why TLS failed. It is the label reason of rdmabridge_listener_tls_failures_total and
// rdmabridge_upstream_tls_failures_total.
type TLSReason string

// Reasons of a handshake that failed, or of a secured connection that ended for its TLS.
const (
	TLSNoCertificate    TLSReason = "no_certificate"    // the client has sent no certificate, and must
	TLSExpired          TLSReason = "expired"           // the peer's certificate has expired, or is not valid yet
	TLSUnknownAuthority TLSReason = "unknown_authority" // no CA that is trusted has signed it
	TLSWrongName        TLSReason = "wrong_name"        // the server's certificate does not have the name
	TLSBadCertificate   TLSReason = "bad_certificate"   // another fault of the peer's certificate
	TLSRevoked          TLSReason = "revoked"           // its issuer or this side's owner has revoked it
	TLSForbidden        TLSReason = "forbidden"         // the peer is known and may not connect
	TLSNoALPN           TLSReason = "alpn"              // the peer does not name RPC as its protocol
	TLSVersion          TLSReason = "version"           // the peer lacks TLS 1.3
	TLSParameters       TLSReason = "parameters"        // no cipher suite, group or signature is shared
	TLSTimeout          TLSReason = "timeout"           // a stage of the handshake took too long
	TLSBusy             TLSReason = "busy"              // too many handshakes were under way
	TLSGarbage          TLSReason = "garbage"           // the peer has sent something that is not TLS
	TLSInjected         TLSReason = "injected"          // octets in plain text followed the end of the plain text, or a Call before it was not answered yet
	TLSPeerAlert        TLSReason = "peer_alert"        // the peer has refused, with an alert
	TLSPeerClosed       TLSReason = "peer_closed"       // the peer has ended the connection inside the handshake
	TLSFlood            TLSReason = "flood"             // too many TLS records without data
	TLSFailed           TLSReason = "failed"            // anything else
)

// tlsReasons lists every reason, for the counters.
var tlsReasons = []TLSReason{
	TLSNoCertificate, TLSExpired, TLSUnknownAuthority, TLSWrongName, TLSBadCertificate, TLSRevoked, TLSForbidden,
	TLSNoALPN, TLSVersion, TLSParameters, TLSTimeout, TLSBusy, TLSGarbage, TLSInjected, TLSPeerAlert, TLSPeerClosed,
	TLSFlood, TLSFailed,
}

// A TLSError says why TLS failed. Callbacks of tls.Config may return one, to give the reason.
type TLSError struct {
	Reason TLSReason
	Err    error
}

func (e *TLSError) Error() string {
	if s := e.explain(); s != "" {
		return "tcpframe: TLS: " + s + ": " + e.Err.Error()
	}
	return "tcpframe: TLS: " + e.Err.Error()
}

// tlsAlerts says what a peer means by its alert: RFC 8446 Section 6.2. The others say what they mean.
var tlsAlerts = map[tls.AlertError]string{
	40:  "the peer shares no parameters of TLS with this side",
	42:  "the peer refuses the certificate of this side",
	43:  "the peer refuses the certificate of this side",
	44:  "the peer says that the certificate of this side is revoked",
	45:  "the peer says that the certificate of this side has expired",
	46:  "the peer refuses the certificate of this side",
	48:  "the peer does not know the CA of the certificate of this side",
	49:  "the peer does not let the certificate of this side in",
	70:  "the peer lacks TLS 1.3",
	116: "the peer requires a certificate, and this side has sent none",
	120: "the peer does not speak RPC with TLS at this port",
}

// explain says what has failed, where Err does so only for those who know TLS. It returns "" otherwise.
func (e *TLSError) explain() string {
	switch e.Reason {
	case TLSUnknownAuthority:
		return "no CA that this side trusts has signed the certificate of the peer"
	case TLSPeerAlert:
		// crypto/tls has a type of its own for alerts of the peer.
		if o, ok := errors.AsType[*net.OpError](e.Err); ok {
			for alert, s := range tlsAlerts {
				if o.Err.Error() == alert.Error() {
					return s
				}
			}
		}
	}
	return ""
}

// Unwrap returns what has failed.
func (e *TLSError) Unwrap() error { return e.Err }

var (
	errBehindPlain = &TLSError{TLSInjected, errors.New("the peer sent octets in plain text behind the message that ends it")}
	errFlood       = &TLSError{TLSFlood, errors.New("too many records without data")}
	errNotTLS      = &TLSError{TLSGarbage, errors.New("the first octets are not a ClientHello")}
	errLongHello   = &TLSError{TLSGarbage, errors.New("the ClientHello is too long")}
	errBusy        = &TLSError{TLSBusy, errors.New("too many handshakes are under way and waiting")}
	errGaveWay     = &TLSError{TLSBusy, errors.New("the handshake waited for the peer, and gave way to others, because too many were under way")}
	errNoALPN      = &TLSError{TLSNoALPN, errors.New("the server does not select the protocol " + alpn)}
)

// asTLSError gives err, an error of crypto/tls, its reason.
func asTLSError(err error) *TLSError {
	if e, ok := errors.AsType[*TLSError](err); ok {
		if e == err {
			return e
		}
		return &TLSError{e.Reason, err}
	}
	return &TLSError{reasonOf(err), err}
}

func reasonOf(err error) TLSReason {
	if r, ok := certificateReason(err); ok {
		return r
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return TLSPeerAlert
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return TLSGarbage
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return TLSTimeout
	case isErrno(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return TLSPeerClosed
	}
	return textReason(err.Error())
}

// isErrno reports whether err is an error of the socket.
func isErrno(err error) bool { _, ok := errors.AsType[unix.Errno](err); return ok }

// certificateReason returns what is wrong with the peer's certificate, if that is what err says.
func certificateReason(err error) (TLSReason, bool) {
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if e.Reason == x509.Expired {
			return TLSExpired, true
		}
		return TLSBadCertificate, true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return TLSWrongName, true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return TLSUnknownAuthority, true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return TLSBadCertificate, true
	}
	return "", false
}

// tlsTexts gives the reasons of errors that crypto/tls makes of a text only. TestTLSFailures has a peer for
// each.
var tlsTexts = []struct {
	text   string
	reason TLSReason
}{
	{"didn't provide a certificate", TLSNoCertificate},
	{"application protocol", TLSNoALPN},
	{"ALPN", TLSNoALPN},
	{"unsupported versions", TLSVersion},
	{"unsupported protocol version", TLSVersion},
	{"protocol version not supported", TLSVersion},
	{"no cipher suite supported", TLSParameters},
	{"no key exchanges supported", TLSParameters},
	{"signature algorithm", TLSParameters},
	{"failed to parse c", TLSBadCertificate},
	{"containing RSA key larger", TLSBadCertificate},
	{"unsupported public key", TLSBadCertificate},
	{"unsupported type of public key", TLSBadCertificate},
	{"invalid signature by the", TLSBadCertificate},
	{"non-advancing records", TLSFlood},
	{"ignored records", TLSFlood},
	{"unexpected message", TLSGarbage},
	{"unexpected handshake message", TLSGarbage},
	{"received unexpected", TLSGarbage},
	{"error decoding message", TLSGarbage},
	{"bad record MAC", TLSGarbage},
	{"record overflow", TLSGarbage},
	{"illegal parameter", TLSGarbage},
	{"exceeds maximum of", TLSGarbage},
}

func textReason(text string) TLSReason {
	for _, t := range tlsTexts {
		if strings.Contains(text, t.text) {
			return t.reason
		}
	}
	return TLSFailed
}
