package configs

import "fmt"

// The words of settings that code compares.
const (
	ProviderIWARP   = "iwarp"
	ProviderIBVerbs = "ibverbs"

	FPDUMax  = "max"
	fpduEMSS = "emss"

	exposureAuto         = "auto"
	exposureWindows      = "windows"
	exposureRegistration = "registration"

	PrivilegedAny      = "any"
	PrivilegedRequired = "required"

	FormatAuto    = "auto"
	FormatConsole = "console"
	FormatJSON    = "json"

	BalancePriority = "priority"
	balanceSpread   = "spread"

	LayoutsHide = "hide"
	layoutsPass = "pass"

	PoolAuto     = "auto"
	PoolShared   = "shared"
	PoolSessions = "sessions"
	PoolPinned   = "pinned"

	ProxyV2  = "v2"
	proxyOff = "off"

	FlavorNone  = "none"
	FlavorSys   = "sys"
	FlavorKrb5  = "krb5"
	FlavorKrb5i = "krb5i"
	FlavorKrb5p = "krb5p"

	ClassReading  = "reading"
	ClassChanging = "changing"

	ActionAllow    = "allow"
	ActionDeny     = "deny"
	ActionUpstream = "upstream"
	ActionLimit    = "limit"

	SquashOff  = "off"
	SquashRoot = "root"
	SquashAll  = "all"

	AnswerAuth        = "auth"
	AnswerReadOnly    = "read_only"
	AnswerUnavailable = "unavailable"
	AnswerClose       = "close"

	// The modes of TLS.
	TLSOff      = "off"
	TLSOptional = "optional"
	TLSRequired = "required"

	// Whether clients show certificates.
	TLSClientNone    = "none"
	TLSClientRequest = "request"
	TLSClientRequire = "require"

	// What becomes of a Call that is executed twice.
	EffectReadOnly      = "read_only"      // nothing: no Call changes anything
	EffectIdempotent    = "idempotent"     // the same state as after one
	EffectNonIdempotent = "non_idempotent" // another state, or an error

	none = "none"
)

// A Transport is how a listener's clients, or an upstream's servers, send RPC.
type Transport string

// The transports.
const (
	TransportTCP  Transport = "tcp"  // RFC 5531 Section 11, record marking
	TransportRDMA Transport = "rdma" // RFC 8166
)

// A Program is an RPC program as the file has it: a name or a number.
type Program string

// A Switch is On or Off. The zero Switch is neither, and stands for the default.
type Switch uint8

// The positions of a Switch.
const (
	On Switch = iota + 1
	Off
)

// String returns the word that a file uses.
func (s Switch) String() string {
	switch s {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return ""
}

func parseSwitch(s string) (Switch, error) {
	switch s {
	case "on", "true", "yes":
		return On, nil
	case "off", "false", "no":
		return Off, nil
	}
	return 0, fmt.Errorf("%q is not a switch; write on or off", s)
}
