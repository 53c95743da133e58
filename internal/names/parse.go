package names

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A kind says what a fact is about.
type kind uint8

const (
	named   kind = iota // handle is name in dir; without dir, name is a path from the root that NFSv4 begins at
	gone                // name in dir is removed
	moved               // name in dir is toName in toDir now
	mount               // handle is the root of the export whose path is name, by MOUNT of NFSv3
	mount4              // handle is the root of NFSv4, where name is "/"
	within              // handle is in the file system fsid
	entered             // as named, and what table has it marked with; only of a hand-over, as is the next one
	told                // what was known was told, and what follows is new
)

// A fact is what one Call and its Reply say of handles and names. Its octets belong to the messages.
type fact struct {
	kind          kind
	handle        []byte
	dir, name     []byte
	toDir, toName []byte
	fsid          fsid
	at            int64 // when the Reply came: monotonic

	mounted, removed, nameless bool // of entered: as in a table; nameless: another handle has the place, or none
}

// An fsid names a file system of a server. That of NFSv3 has no minor. A server may tell clients of NFSv3 another one than
// clients of NFSv4, for the same handle.
type fsid struct {
	version      uint8 // 3 or 4; 0 if the fsid is not known
	major, minor uint64
}

// parsed is what a Call and its Reply say: facts, in their order, and which file the Call uses.
type parsed struct {
	facts         []fact
	handle        []byte // that the Call uses, which does not take a Reply; nil for none
	read, written uint32 // octets of data
	opaque        bool   // the arguments are encrypted

	ops []op4 // scratch
}

// parse fills p from a Call and its Reply, which may be cut off. It learns nothing from a Reply that says that the
// operation has failed.
func (p *parsed) parse(call, reply []byte) {
	*p = parsed{facts: p.facts[:0], ops: p.ops[:0]}
	var c oncrpc.Call
	var r oncrpc.Reply
	if oncrpc.ParseCall(call, &c) != nil {
		return
	}
	args, wrapped := c.Args, 0
	switch c.Protection {
	case oncrpc.ProtectNone:
	case oncrpc.ProtectIntegrity:
		wrapped = 8 // the length and the sequence number of rpc_gss_integ_data: RFC 2203 Section 5.3.2.2
	default:
		p.opaque = c.Protection == oncrpc.ProtectPrivacy
		return
	}
	a := xdr.NewCursor(call, args+wrapped)
	p.handle = firstHandle(&c, call, a)
	if oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded() {
		return
	}
	x := xdr.NewCursor(reply, r.Results+wrapped)
	switch {
	case c.Program == oncrpc.ProgramMount && c.Version == 3 && c.Procedure == 1:
		p.mnt(&a, &x)
	case c.Program == oncrpc.ProgramNFS && c.Version == 3:
		p.v3(c.Procedure, &a, &x)
	case c.Program == oncrpc.ProgramNFS && c.Version == 4 && c.Procedure == 1:
		p.v4(call, reply, a.Pos(), x.Pos())
	}
}

// firstHandle returns the handle that a Call names first, nil if it names none. Its arguments begin at a.
func firstHandle(c *oncrpc.Call, call []byte, a xdr.Cursor) (h []byte) {
	switch {
	case c.Program != oncrpc.ProgramNFS || c.Procedure == 0:
	case c.Version == 3:
		h = a.Octets()
	case c.Version == 4:
		nfs.EachOperation(call, a.Pos(), func(number uint32, pos int) bool {
			move, octets := nfs.MoveOf(number, call, pos)
			if move != nfs.Puts {
				return true
			}
			h = octets
			return false
		})
	}
	return h
}

// learn adds a fact. A name of no octets or too many is no name, and "." and ".." say nothing of a parent.
func (p *parsed) learn(f fact) {
	for _, name := range [][]byte{f.name, f.toName} {
		if s := string(name); s == "." || s == ".." || len(name) > maxPath {
			return
		}
	}
	if len(f.handle) > maxHandle || len(f.dir) > maxHandle || len(f.toDir) > maxHandle {
		return
	}
	p.facts = append(p.facts, f)
}

// own returns the file system of the handle that the Call uses, nil if its Reply does not say it.
func (p *parsed) own() (own *fsid) {
	for i := range p.facts {
		if f := &p.facts[i]; f.kind == within && string(f.handle) == string(p.handle) {
			own = &f.fsid
		}
	}
	return own
}

// maxHandle is the longest file handle, NFS4_FHSIZE. maxPath bounds names and paths.
const (
	maxHandle = 128
	maxPath   = 1024
)

// mnt learns from MNT: RFC 1813 Section 5.2.1.
func (p *parsed) mnt(a, x *xdr.Cursor) {
	path := a.Octets()
	if x.Uint32() != 0 {
		return
	}
	if h := x.Octets(); len(h) > 0 && len(path) > 0 {
		p.learn(fact{kind: mount, handle: h, name: path})
	}
}

// NFSv3: RFC 1813 Section 3.
func (p *parsed) v3(procedure uint32, a, x *xdr.Cursor) {
	if procedure == 0 || procedure > 21 {
		return
	}
	h := a.Octets()
	if h == nil || x.Uint32() != 0 || !x.OK() {
		return
	}
	switch procedure {
	case 1: // GETATTR
		p.fattr3(x, h)
	case 3: // LOOKUP
		name, obj := a.Octets(), x.Octets()
		p.child(obj, h, name)
		p.poa3(x, obj)
		p.poa3(x, h)
	case 2, 21: // SETATTR, COMMIT
		p.wcc3(x, h)
	case 4, 5, 16, 18, 19, 20: // ACCESS, READLINK, READDIR, FSSTAT, FSINFO, PATHCONF
		p.poa3(x, h)
	case 6: // READ
		p.poa3(x, h)
		p.read = x.Uint32()
	case 7: // WRITE
		p.wcc3(x, h)
		p.written = x.Uint32()
	case 8, 9, 10, 11: // CREATE, MKDIR, SYMLINK, MKNOD
		name, obj := a.Octets(), []byte(nil)
		if x.Uint32() == 1 {
			obj = x.Octets()
		}
		p.child(obj, h, name)
		p.poa3(x, obj)
		p.wcc3(x, h)
	case 12, 13: // REMOVE, RMDIR
		if name := a.Octets(); name != nil {
			p.learn(fact{kind: gone, dir: h, name: name})
		}
		p.wcc3(x, h)
	case 14: // RENAME
		name, dir, to := a.Octets(), a.Octets(), a.Octets()
		if to != nil {
			p.learn(fact{kind: moved, dir: h, name: name, toDir: dir, toName: to})
		}
		p.wcc3(x, h)
	case 15: // LINK
		dir, name := a.Octets(), a.Octets()
		p.child(h, dir, name)
		p.poa3(x, h)
	case 17: // READDIRPLUS
		p.poa3(x, h)
		x.Skip(8)
		for x.Uint32() == 1 {
			x.Skip(8)
			name := x.Octets()
			x.Skip(8)
			ahead := *x // the handle follows the attributes
			skipAttributes(&ahead)
			var obj []byte
			if ahead.Uint32() == 1 {
				obj = ahead.Octets()
			}
			p.child(obj, h, name)
			if s := string(name); s != "." && s != ".." {
				p.poa3(x, obj)
			}
			*x = ahead
		}
	}
}

// child learns that obj is name in dir, if all are known.
func (p *parsed) child(obj, dir, name []byte) {
	if len(obj) > 0 && len(dir) > 0 && len(name) > 0 {
		p.learn(fact{kind: named, handle: obj, dir: dir, name: name})
	}
}

// poa3 learns from a post_op_attr of h.
func (p *parsed) poa3(x *xdr.Cursor, h []byte) {
	if x.Uint32() == 1 {
		p.fattr3(x, h)
	}
}

// fattr3 learns from attributes of h: type, mode, nlink, uid, gid, size, used, rdev, fsid, fileid and three times.
func (p *parsed) fattr3(x *xdr.Cursor, h []byte) {
	x.Skip(44)
	f := fsid{version: 3, major: x.Uint64()}
	x.Skip(32)
	if x.OK() && len(h) > 0 {
		p.learn(fact{kind: within, handle: h, fsid: f})
	}
}

func skipAttributes(x *xdr.Cursor) {
	if x.Uint32() == 1 {
		x.Skip(84)
	}
}

// wcc3 learns from the wcc_data of h: pre_op_attr, post_op_attr.
func (p *parsed) wcc3(x *xdr.Cursor, h []byte) {
	if x.Uint32() == 1 {
		x.Skip(24)
	}
	p.poa3(x, h)
}

// An op4 is an operation of a COMPOUND.
type op4 struct {
	number uint32
	pos    int // of its arguments
}

// A filehandle is a current or saved filehandle of NFSv4: a handle, or what is looked up in one whose handle the
// messages do not have.
type filehandle struct {
	handle []byte
	rooted bool   // path begins at the root of NFSv4
	dir    []byte // path begins here if not rooted
	path   []byte // names between slashes
}

func (f *filehandle) known() bool { return len(f.handle) > 0 }

// enter returns what name in f is.
func (f *filehandle) enter(name []byte) filehandle {
	switch {
	case len(name) == 0:
		return filehandle{}
	case f.known():
		return filehandle{dir: f.handle, path: name}
	case len(f.path) == 0 && !f.rooted || len(f.path) > maxPath:
		return filehandle{}
	}
	n := *f
	n.path = append(append(append([]byte(nil), f.path...), '/'), name...)
	return n
}

// v4 follows the current and the saved filehandle through a COMPOUND: RFC 7530 Section 14.2. Arguments and results
// begin at args and results.
func (p *parsed) v4(call, reply []byte, args, results int) {
	nfs.EachOperation(call, args, func(number uint32, pos int) bool {
		p.ops = append(p.ops, op4{number, pos})
		return true
	})
	var current, saved filehandle
	var moving bool // the handle is that of a READ or a WRITE
	next := 0
	nfs.EachResult(reply, results, func(number, status uint32, pos int) bool {
		if next == len(p.ops) || p.ops[next].number != number || status != 0 {
			return false
		}
		arguments := p.ops[next].pos
		a, x := xdr.NewCursor(call, arguments), xdr.NewCursor(reply, pos)
		next++
		switch move, octets := nfs.MoveOf(number, call, arguments); move {
		case nfs.Puts:
			current = filehandle{handle: octets}
		case nfs.PutsRoot:
			current = filehandle{rooted: true}
		case nfs.Restores:
			current = saved
		case nfs.Saves:
			saved = current
		case nfs.Enters:
			current = current.enter(octets)
		case nfs.GoesUp, nfs.EntersAttrs:
			current = filehandle{}
		case nfs.Stays:
		}
		switch number {
		case 10: // GETFH
			p.getfh(&current, x.Octets())
		case 9: // GETATTR
			p.attributes4(reply, &x, current.handle)
		case 26: // READDIR
			p.readdir4(reply, &x, current.handle)
		case 11: // LINK
			p.child(saved.handle, current.handle, a.Octets())
		case 28: // REMOVE
			if name := a.Octets(); current.known() && name != nil {
				p.learn(fact{kind: gone, dir: current.handle, name: name})
			}
		case 29: // RENAME
			from, to := a.Octets(), a.Octets()
			if saved.known() && current.known() && to != nil {
				p.learn(fact{kind: moved, dir: saved.handle, name: from, toDir: current.handle, toName: to})
			}
		case 25, 68: // READ, READ_PLUS
			x.Skip(4)
			if number == 25 {
				p.read += x.Uint32()
			}
			moving = p.moves(moving, &current)
		case 38: // WRITE
			p.written += x.Uint32()
			moving = p.moves(moving, &current)
		}
		return true
	})
}

// moves makes f the file that the Call uses, unless it moves data of another one already.
func (p *parsed) moves(already bool, f *filehandle) bool {
	if !already && f.known() {
		p.handle = f.handle
	}
	return true
}

// getfh learns that h is the handle of f.
func (p *parsed) getfh(f *filehandle, h []byte) {
	switch {
	case len(h) == 0:
		return
	case f.rooted && len(f.path) == 0:
		p.learn(fact{kind: mount4, handle: h, name: []byte("/")})
	case f.rooted:
		p.learn(fact{kind: named, handle: h, name: f.path})
	default:
		p.child(h, f.dir, f.path)
	}
	*f = filehandle{handle: h}
}

// widths4 are the octets of the attributes of NFSv4 up to 18 that are as long always: RFC 7530 Section 5.
var widths4 = [...]int{1: 4, 2: 4, 3: 8, 4: 8, 5: 4, 6: 4, 7: 4, 8: 16, 9: 4, 10: 4, 11: 4, 13: 4, 14: 4, 15: 4, 16: 4, 17: 4, 18: 4}

// fattr4 consumes attributes and returns the two that names are about, as far as they are there.
func fattr4(m []byte, x *xdr.Cursor) (f fsid, hasFSID bool, h []byte) {
	n := x.Uint32()
	first := *x
	x.SkipArray(n, 4)
	pos, length := x.Opaque()
	if !x.OK() || n == 0 {
		return
	}
	mask := first.Uint32()
	v := xdr.NewCursor(m[:pos+length], pos)
	for i := range 20 {
		switch {
		case mask&(1<<i) == 0:
		case i == 0:
			v.SkipArray(v.Uint32(), 4)
		case i == 8:
			f = fsid{4, v.Uint64(), v.Uint64()}
			hasFSID = v.OK()
		case i == 12:
			return // an ACL
		case i == 19:
			h = v.Octets()
		default:
			v.Skip(widths4[i])
		}
	}
	return
}

// attributes4 learns from a GETATTR of h.
func (p *parsed) attributes4(m []byte, x *xdr.Cursor, h []byte) {
	if f, ok, _ := fattr4(m, x); ok && len(h) > 0 {
		p.learn(fact{kind: within, handle: h, fsid: f})
	}
}

// readdir4 learns from the entries of dir that have a handle.
func (p *parsed) readdir4(m []byte, x *xdr.Cursor, dir []byte) {
	x.Skip(8)
	for x.Uint32() == 1 {
		x.Skip(8)
		name := x.Octets()
		f, ok, h := fattr4(m, x)
		p.child(h, dir, name)
		if ok && len(h) > 0 {
			p.learn(fact{kind: within, handle: h, fsid: f})
		}
	}
}
