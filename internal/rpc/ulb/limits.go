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

	// Path is the most octets of a symbolic link in NFSv3 and NFSv4, where only
	// the server's file system bounds it. 4096.
	Path uint32

	// Flavors is the most security flavors in a Reply of MOUNT version 3 or of
	// NFSv4 SECINFO. 32.
	Flavors uint32

	// Bitmap is the most units of a bitmap that an NFSv4 server chooses. The
	// attributes of NFSv4.2 take 3. 4.
	Bitmap uint32

	// Identity is the most octets of the name of an owner, a group, or of
	// somebody in an ACL, in NFSv4. 1024.
	Identity uint32

	// Label is the most octets of a security label, RFC 7862 Section 12.2.4. 2048.
	Label uint32

	// XAttr is the most octets of the value of an extended attribute, RFC 8276.
	// 64 KiB, which is what Linux takes.
	XAttr uint32

	// Attribute is the most octets of an attribute that nothing bounds, an ACL or
	// the locations of a file system, in NFSv4.0. Later minor versions have the
	// bound of the session. 64 KiB.
	Attribute uint32

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
	set(&l.Bitmap, 4, maxBound/4)
	set(&l.Identity, 1024, maxBound)
	set(&l.Label, 2048, maxBound)
	set(&l.XAttr, 64<<10, maxBound)
	set(&l.Attribute, 64<<10, maxBound)
	set(&l.Token, 64<<10, maxBound)
	return l
}
