package ulb

// Limits bound what a peer may return where the Call does not say. Each zero
// field takes its default.
//
// A bound that is too large costs memory while a Call is in flight. One that is
// too small loses the Reply of a Call that was executed: RFC 8166 Section 4.5.3
// leaves the Responder nothing but an error then.
type Limits struct {
	// MaxIO is the most data octets of one READ, whatever count a client asks
	// for: at least the largest rtmax of any server behind this proxy. 1 MiB.
	// At most 1 GiB is used.
	MaxIO uint32

	// MaxReply is the largest Reply there is room for, header included, used
	// where nothing bounds it: an unknown program, RPCSEC_GSS privacy, a
	// directory of exports. MaxIO + 8 KiB, and never less than that.
	MaxReply uint32

	// Path is the most octets of a symbolic link in NFSv3, where only the
	// server's file system bounds it. 4096.
	Path uint32

	// Flavors is the most security flavors in a MOUNT version 3 Reply. 32.
	Flavors uint32

	// Token is the most octets of the token a server answers with while a GSS
	// context is set up. 64 KiB.
	Token uint32
}

// Bounds on Limits itself, so that no sum of them overflows 32 bits.
const (
	maxMaxIO    = 1 << 30
	maxMaxReply = maxMaxIO + 1<<20
	maxBound    = 1 << 24

	// replyHeadroom is what a Reply may hold beside MaxIO octets of data:
	// header, verifier, attributes, and the wrapping of GSS integrity.
	replyHeadroom = 8 << 10
)

// withDefaults returns l with every field set and within bounds.
func (l Limits) withDefaults() Limits {
	set := func(v *uint32, def, most uint32) {
		if *v == 0 {
			*v = def
		}
		*v = min(*v, most)
	}
	set(&l.MaxIO, 1<<20, maxMaxIO)
	set(&l.MaxReply, l.MaxIO+replyHeadroom, maxMaxReply)
	l.MaxReply = max(l.MaxReply, l.MaxIO+replyHeadroom)
	set(&l.Path, 4096, maxBound)
	set(&l.Flavors, 32, maxBound/4)
	set(&l.Token, 64<<10, maxBound)
	return l
}
