package audit

import (
	"net/netip"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Classes are kinds of operations, as a set.
type Classes uint8

// The classes.
const (
	Changes Classes = 1 << iota // of data, names or attributes
	Opens                       // of files, by NFSv4
	Denials                     // whatever is answered with a denial
)

// A call is a Call that has lines in the log if nothing else is learned of it.
type call struct {
	client             netip.Addr
	listener, identity string
	program, version   uint32
	flavor             string
	uid, gid           uint32
	hasIDs             bool
	protection         oncrpc.Protection
	ops                []operation
	octets             int // of memory
	lost               int // operations that there was no memory for

	// Of the Reply.
	replied bool
	refused string // what the Reply says instead of results; "" for nothing
	denied  bool   // the Reply refuses the credential
}

// An operation is a procedure, or an operation of a COMPOUND.
type operation struct {
	index      uint32 // in its COMPOUND
	name       string
	class      Classes // Changes, Opens, or 0 for neither
	at, to     place   // to is where a RENAME or LINK leads
	target     string  // of a symbolic link
	attribute  string  // the name of an extended attribute
	octets     uint64
	hasOctets  bool
	answered   bool // it has a status
	status     uint32
	unreadable bool // this and all after it in the COMPOUND could not be read
}

// A place is a file, or a name in a directory.
type place struct {
	handle string
	rooted bool   // below begins at the root of NFSv4, and handle is ""
	below  string // names that lead from the handle, each behind a slash
	name   string // "" for the file itself
	named  bool
	base   string // the path of the handle when the Call was over; "" if it is not known
}

// Octets of texts that are kept. What is longer is no name to any server.
const (
	maxHandle = 128
	maxText   = 4096
)

// opaque consumes a variable-length opaque of m and returns it.
func opaque(m []byte, x *xdr.Cursor, most int) string {
	pos, n := x.Opaque()
	if !x.OK() {
		return ""
	}
	return cut(m[pos:pos+n], most)
}

// cut returns b, or its beginning if it has more octets than most.
func cut(b []byte, most int) string {
	if len(b) > most {
		return string(b[:most]) + "..."
	}
	return string(b)
}

// handle consumes a file handle.
func handle(version uint32, m []byte, x *xdr.Cursor) string {
	if version != 2 {
		return opaque(m, x, maxHandle)
	}
	pos := x.Pos()
	if x.Skip(32); !x.OK() {
		return ""
	}
	return string(m[pos : pos+32])
}

// A shape is what arguments begin with.
type shape uint8

const (
	unknown shape = iota
	ofFile        // a handle
	ofEntry       // a handle and a name
	ofWrite
	ofRename
	ofLink
	ofSymlink
)

// changes are the procedures that change something, by version.
var changes = map[uint32]map[uint32]shape{
	2: {2: ofFile, 8: ofWrite, 9: ofEntry, 10: ofEntry, 11: ofRename, 12: ofLink, 13: ofSymlink, 14: ofEntry, 15: ofEntry},
	3: {2: ofFile, 7: ofWrite, 8: ofEntry, 9: ofEntry, 10: ofSymlink, 11: ofEntry, 12: ofEntry, 13: ofEntry, 14: ofRename, 15: ofLink},
}

// lookups are the other procedures whose arguments are a handle and a name, by version.
var lookups = map[uint32]uint32{2: 4, 3: 3}

// setACL is the procedure of NFSACL that changes something.
const setACL = 2

// shapeOf returns the shape of a procedure, and whether it is a change.
func shapeOf(program, version, procedure uint32) (s shape, change bool) {
	if program == oncrpc.ProgramNFSACL {
		return ofFile, procedure == setACL
	}
	if s, change = changes[version][procedure]; change {
		return s, true
	}
	if lookups[version] == procedure {
		return ofEntry, false
	}
	return ofFile, false
}

// credential fills in who c is.
func (c *call) credential(h *oncrpc.Call) {
	switch h.Flavor {
	case oncrpc.FlavorSys:
		c.flavor = "sys"
		if s, ok := h.Sys(); ok {
			c.uid, c.gid, c.hasIDs = s.UID(), s.Group(0), true
		}
	case oncrpc.FlavorGSS:
		c.flavor = "gss"
	case oncrpc.FlavorNone:
		c.flavor = "none"
	default:
		c.flavor = "other"
	}
}

// arguments fills in what a Call of NFSv2, NFSv3 or NFSACL is about.
func (c *call) arguments(h *oncrpc.Call, name string, start, end int) {
	m := h.Message[:end]
	x := xdr.NewCursor(m, start)
	s, change := shapeOf(h.Program, h.Version, h.Procedure)
	o := operation{name: name}
	if change {
		o.class = Changes
	}
	o.at.handle = handle(h.Version, m, &x)
	switch s {
	case ofEntry:
		o.at.entry(m, &x)
	case ofWrite:
		x.Skip(8)
		if h.Version == 2 {
			x.Skip(4)
		}
		o.octets, o.hasOctets = uint64(x.Uint32()), true
	case ofRename:
		o.at.entry(m, &x)
		o.to.handle = handle(h.Version, m, &x)
		o.to.entry(m, &x)
	case ofLink:
		o.to.handle = handle(h.Version, m, &x)
		o.to.entry(m, &x)
	case ofSymlink:
		o.at.entry(m, &x)
		if h.Version == 3 {
			skipAttributes3(&x)
		}
		o.target = opaque(m, &x, maxText)
	}
	o.unreadable = !x.OK()
	c.ops = append(c.ops, o)
}

// entry consumes a name in p.
func (p *place) entry(m []byte, x *xdr.Cursor) { p.name, p.named = opaque(m, x, maxText), true }

// skipAttributes3 consumes a sattr3: RFC 1813 Section 2.6.
func skipAttributes3(x *xdr.Cursor) {
	for _, n := range [...]int{4, 4, 4, 8} { // mode, uid, gid, size
		if x.Uint32() == 1 {
			x.Skip(n)
		}
	}
	for range 2 { // atime, mtime
		if x.Uint32() == 2 {
			x.Skip(8)
		}
	}
}

// reply fills in what the Reply says. It may be called again with a later one, which counts.
func (c *call) reply(m []byte) {
	var r oncrpc.Reply
	if oncrpc.ParseReply(m, &r) != nil {
		return
	}
	c.replied, c.refused, c.denied = true, "", false
	switch {
	case r.Denied && r.RejectStat == oncrpc.AuthError:
		c.refused, c.denied = oncrpc.AuthStatName(r.AuthStat), true
		return
	case r.Denied:
		c.refused = "RPC_MISMATCH"
		return
	case !r.Succeeded():
		c.refused = acceptNames[min(r.AcceptStat, uint32(len(acceptNames)-1))]
		return
	}
	start := r.Results
	if c.protection == oncrpc.ProtectIntegrity {
		start += 8 // databody_integ<>: seq_num. RFC 2203 Section 5.3.3.2.
	}
	if c.version == 4 && c.program == oncrpc.ProgramNFS {
		c.compoundResults(m, start)
		return
	}
	if len(c.ops) == 0 {
		return
	}
	x := xdr.NewCursor(m, min(start, len(m)))
	o := &c.ops[0]
	status := x.Uint32()
	if !x.OK() {
		return
	}
	o.status, o.answered = status, true
	if o.hasOctets && c.version == 3 && status == 0 {
		if x.Uint32() == 1 { // wcc_data
			x.Skip(24)
		}
		if x.Uint32() == 1 {
			x.Skip(84)
		}
		if n := x.Uint32(); x.OK() {
			o.octets = uint64(n)
		}
	}
}

// acceptNames are the names of accept_stat, RFC 5531 Section 9.
var acceptNames = [...]string{"SUCCESS", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL", "GARBAGE_ARGS", "SYSTEM_ERR", "RPC error"}

// denial reports whether a status of NFS says that the client may not do what it wants: PERM, ACCES, ROFS and WRONGSEC.
func denial(status uint32) bool {
	return status == 1 || status == 13 || status == 30 || status == 10016
}

// result is the name of what became of o.
func (c *call) result(o *operation, sent bool) string {
	switch {
	case o.answered:
		version := c.version
		if c.program == oncrpc.ProgramNFSACL {
			version = 3
		}
		return nfs.StatusName(version, o.status)
	case c.refused != "":
		return c.refused
	case !sent:
		return "not sent"
	}
	return "unknown"
}

// memory returns about how many octets c takes.
func (c *call) memory() int {
	n := 256
	for i := range c.ops {
		o := &c.ops[i]
		n += 256 + len(o.at.handle) + len(o.at.below) + len(o.at.name) + len(o.to.handle) + len(o.to.below) + len(o.to.name) + len(o.target) + len(o.attribute)
	}
	return n
}

// path joins names to the path of what they are below.
func path(base, below, name string) string {
	base = strings.TrimSuffix(base, "/") + below
	if name != "" {
		base += "/" + name
	}
	if base == "" {
		return "/"
	}
	return base
}
