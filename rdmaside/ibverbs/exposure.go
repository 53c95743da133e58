package ibverbs

import "fmt"

// An Exposure is how a Provider lets its peers access the memory of a Call. No handle outlives its Call
// in any of them.
type Exposure uint8

const (
	// ExposeAuto is ExposeWindows on devices whose driver's windows are trusted (see Quirks), and
	// ExposeRegistration on others. When windows fail on a device, its later connections have
	// ExposeRegistration. When the invalidation of a window fails, which a server can cause, only the
	// later connections to this server have it.
	ExposeAuto Exposure = iota
	// ExposeWindows binds a type 2 memory window for each handle. The handle is valid on its
	// connection only, and the peer may invalidate it if the driver's windows are trusted. A device
	// without such windows has no connections.
	ExposeWindows
	// ExposeRegistration registers memory for each handle, and deregisters it.
	ExposeRegistration
)

var exposures = [...]string{ExposeAuto: "auto", ExposeWindows: "windows", ExposeRegistration: "registration"}

// String returns the word of the configuration.
func (e Exposure) String() string { return exposures[e] }

// ParseExposure returns the Exposure of a word of the configuration, and ExposeAuto for none.
func ParseExposure(s string) (Exposure, error) {
	if s == "" {
		return ExposeAuto, nil
	}
	for e, word := range exposures {
		if word == s {
			return Exposure(e), nil
		}
	}
	return 0, fmt.Errorf("ibverbs: exposure %q", s)
}
