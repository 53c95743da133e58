package configs

import (
	"net/netip"
	"strings"
)

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
	Device string `mapstructure:"device"` // name of the only device to use, or ""
	Port   int    `mapstructure:"port"`   // number of the only port to use, or 0
	GID    string `mapstructure:"gid"`    // the only GID to use, as an IP address, or ""

	// TrafficClass is the type of service of connections: the DSCP in the upper six bits.
	// 0 leaves it to the kernel.
	TrafficClass int `mapstructure:"traffic_class"`
	// Exposure is how an upstream's servers access the memory of Calls: auto, windows or
	// registration.
	Exposure string `mapstructure:"exposure"`
	// BusyPoll is for how long a connection polls before its loop may sleep.
	BusyPoll Duration `mapstructure:"busy_poll"`
}

// Selects reports whether the settings say which device, port or GID to use.
func (v *IBVerbs) Selects() bool { return v.Device != "" || v.Port != 0 || v.GID != "" }

const (
	maxTrafficClass = 255
	maxDevicePort   = 254 // what the verbs can number
	maxBusyPoll     = 10 * millisecond
)

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

// checkProvider checks the provider and its settings. listen is the address of a listener, or "".
func checkProvider(path, provider string, w IWARP, v IBVerbs, listen string, k Known, r *report) {
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
		v.validate(path+".ibverbs", r)
		if at := path + ".ibverbs"; k.IBVerbs != nil && (v.Selects() || v.TrafficClass != 0) && !r.has(path+".provider") && !r.has(at) && !r.spoiled(at) {
			if err := k.IBVerbs(v, listen); err != nil {
				r.addf(at, "%v", err)
			}
		}
	}
}

func (v *IBVerbs) validate(path string, r *report) {
	if strings.ContainsAny(v.Device, " \t\r\n/") || v.Device == "." || v.Device == ".." {
		r.addf(path+".device", "%q is not the name of an RDMA device; write a name such as mlx5_0", v.Device)
	}
	r.atMost(path+".port", v.Port, maxDevicePort)
	if a, err := netip.ParseAddr(v.GID); v.GID != "" && (err != nil || a.Zone() != "" || a.IsUnspecified()) {
		r.addf(path+".gid", "%q is not a GID; write one as an IPv6 address, such as fe80::ac0:ebff:fe00:1, or the IPv4 address that it stands for", v.GID)
	}
	r.atMost(path+".traffic_class", v.TrafficClass, maxTrafficClass)
	r.busyPoll(path+".busy_poll", v.BusyPoll)
	r.oneOf(path+".exposure", v.Exposure, exposureAuto, exposureWindows, exposureRegistration)
}

// busyPoll checks for how long a loop, or a connection, polls before it sleeps.
func (r *report) busyPoll(path string, d Duration) {
	if d > maxBusyPoll {
		r.addf(path, "%s is too long; write at most %s, or none", d, maxBusyPoll)
	}
}
