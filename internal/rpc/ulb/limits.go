package ulb

// Limits bound the parts of a Reply that the Call does not bound. A field that is zero
// has its default.
//
// A bound that is too large costs memory while a Call is in flight. A bound that is
// too small loses the Reply of a Call that was executed: by RFC 8166 Section 4.5.3 the
// Responder can then only answer with an error.
type Limits struct {
	// MaxIO is the most data octets of one READ, also when a client asks for more. It
	// should be at least the largest rtmax of any server behind this proxy. Default
	// 1 MiB. At most 1 GiB is used.
	MaxIO uint32

	// MaxReply is the most octets of any Reply, header included. It is the bound of a
	// Reply that has no other: of an unknown program, under RPCSEC_GSS privacy, with a
	// list of exports. Default and minimum MaxIO + 8 KiB.
	MaxReply uint32

	// Path is the most octets of a symbolic link in NFSv3 and NFSv4, where only
	// the server's file system bounds it. Default 4096.
	Path uint32

	// Flavors is the most security flavors in a Reply of MOUNT version 3 or of
	// NFSv4 SECINFO. Default 32.
	Flavors uint32

	// Bitmap is the most units of a bitmap whose length an NFSv4 server chooses. The
	// attributes of NFSv4.2 need 3. Default 4.
	Bitmap uint32

	// Identity is the most octets of the name of an owner, a group, or a principal
	// in an ACL, in NFSv4. Default 1024.
	Identity uint32

	// Label is the most octets of a security label, RFC 7862 Section 12.2.4. Default
	// 2048.
	Label uint32

	// XAttr is the most octets of the value of an extended attribute, RFC 8276.
	// Default 64 KiB, the limit of Linux.
	XAttr uint32

	// Attribute is the most octets of an attribute that nothing else bounds, such as an
	// ACL or the locations of a file system, in NFSv4.0. In later minor versions the
	// session bounds it. Default 64 KiB.
	Attribute uint32

	// Token is the most octets of the token with which a server answers while a client
	// sets up a GSS context. Default 64 KiB.
	Token uint32
}

// Bounds on the fields of Limits, so that no sum of fields overflows 32 bits.
const (
	maxMaxIO    = 1 << 30
	maxMaxReply = maxMaxIO + 1<<20
	maxBound    = 1 << 24

	// replyHeadroom is the room in a Reply beside MaxIO octets of data, for the
	// header, the verifier, attributes, and the wrapping of GSS integrity.
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
