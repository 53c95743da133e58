package configs

// Inline has the inline thresholds of RFC 8166 Section 3.3.2, one for each direction.
// RFC 8797 lowers them to what the peer offers.
type Inline struct {
	Call  Size `mapstructure:"call"`
	Reply Size `mapstructure:"reply"`
}

// IWARP has the settings of the provider iwarp.
type IWARP struct {
	CRC  Switch `mapstructure:"crc"`  // CRC32c of RFC 5044
	FPDU string `mapstructure:"fpdu"` // emss: an FPDU fits a TCP segment; max: up to 64 KiB

	// Revision1 lets an upstream fall back to MPA revision 1 (RFC 5044) when the peer
	// closes the connection on revision 2 (RFC 6581). Listeners answer both.
	Revision1 Switch `mapstructure:"revision1"`
}

// IBVerbs has the settings of the provider ibverbs.
type IBVerbs struct {
	// TrafficClass is the type of service of an upstream's connections: the DSCP in the upper
	// six bits. 0 leaves it to the kernel.
	TrafficClass int `mapstructure:"traffic_class"`
	// Exposure is how an upstream's servers access the memory of Calls: auto, windows or
	// registration.
	Exposure string `mapstructure:"exposure"`
}

const maxTrafficClass = 255

const (
	maxInline = 64 * KiB // RFC 8797 allows 256 KiB, which would be much memory for each credit
	minInline = 1 * KiB  // RFC 8166 Section 3.3.2: every peer accepts 1024 octets
)

func (i *Inline) validate(path string, r *report) {
	checkInline(path+".call", i.Call, r)
	checkInline(path+".reply", i.Reply, r)
}

// checkInline accepts whole KiB only: RFC 8797 Section 4 cannot express other values.
func checkInline(path string, s Size, r *report) {
	if r.between(path, s, minInline, maxInline) && s%KiB != 0 {
		r.addf(path, "%s is not a multiple of 1KiB; write %s", s, s/KiB*KiB)
	}
}

func checkProvider(path, provider string, w IWARP, v IBVerbs, k Known, r *report) {
	if provider != "" && !r.has(path+".provider") {
		if err := k.checkProvider(provider); err != nil {
			r.addf(path+".provider", "%v", err)
		}
	}
	if provider == ProviderIWARP {
		r.oneOf(path+".iwarp.fpdu", w.FPDU, fpduEMSS, FPDUMax)
	} else {
		r.needs(path, "provider iwarp", "iwarp")
	}
	if provider != ProviderIBVerbs {
		r.needs(path, "provider ibverbs", "ibverbs")
	} else {
		r.atMost(path+".ibverbs.traffic_class", v.TrafficClass, maxTrafficClass)
		r.oneOf(path+".ibverbs.exposure", v.Exposure, exposureAuto, exposureWindows, exposureRegistration)
	}
}
