package nfs

import (
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Exports that Calls are about
//
// A handle begins with what the server finds the export by: with Linux's server a kind, and a number or a UUID; with
// nfs-ganesha the Export_Id. An [Exports] knows these keys of the exports that it was told of, from the handles of their
// roots. So it sees of a handle what the server sees of it, whoever has made the handle.
//
// Linux's server also accepts keys of other kinds for an export than the one that it gives out, for instance made of the
// device's number. So a key that is not known may be that of any export. But a number (fsid= in exports(5)), or an
// Export_Id, stands for the export that has it, and for no other.
//
// A COMPOUND may look up names, and so come from one export into another without naming a handle there. With Linux the name that
// leads into an export is the last one of its path. With nfs-ganesha it is any (Pseudo).

// MaxExports is how many exports an Exports tells apart.
const MaxExports = 63

// Elsewhere stands for all other exports in a Touched.
const Elsewhere = 1 << MaxExports

// Touched are the exports that a Call is about, as a set of bits: 1<<i is the export at i, and Elsewhere is all others.
type Touched struct {
	// May are those in which the Call may read, look at or change a file. What NFSv4 needs to find its way, such as
	// LOOKUP and GETATTR, counts only in an export that is known.
	May uint64
	// Changes are those in which the Call may change a file.
	Changes uint64
	// Unsure is set if the Call may be about an export that is not in May, or not about all of those: it names
	// handles that are not known, it looks up names on its way, or it cannot be read.
	Unsure bool
}

// everything is what a Call is about that cannot be read.
func everything(changes bool) Touched {
	t := Touched{May: ^uint64(0), Unsure: true}
	if changes {
		t.Changes = t.May
	}
	return t
}

// An Exports says which exports Calls are about. It is safe for concurrent use.
type Exports struct {
	paths   []string // clean
	known   atomic.Pointer[exportKeys]
	strange chan struct{} // has one place
}

// exportKeys is what is known of an Exports. It is constant.
type exportKeys struct {
	of    map[handleKey]uint64
	root  uint64 // those that the root of NFSv4 may be in
	named uint64 // those that any name may lead into
}

// A handleKey is what a server finds an export by.
type handleKey struct {
	kind byte
	fsid [24]byte // the rest is zero
}

// Kinds of keys that are a number which the administrator has chosen.
const (
	keyNumber   = 1    // of Linux
	keyExportID = 0x43 // of nfs-ganesha; not in keyLengths
)

// numbered reports whether no two exports have one key of this kind, and no export has two.
func (k *handleKey) numbered() bool { return k.kind == keyNumber || k.kind == keyExportID }

// keyLengths are the octets of keys, by their kind: fs/nfsd/nfsfh.h of Linux, FSID_DEV to FSID_UUID16_INUM.
var keyLengths = [...]int{8, 4, 12, 8, 8, 8, 16, 24}

// keyOf returns the key in a handle. With Linux: version 1, no authentication, the kind of the key, the kind of what identifies
// the file, the key, and the file. With nfs-ganesha: version 0x43, flags, the Export_Id in two octets, and the file. ok is
// false for a handle that has another form.
func keyOf(handle []byte) (k handleKey, ok bool) {
	if len(handle) > 4 && handle[0] == keyExportID {
		k.kind = keyExportID
		copy(k.fsid[:], handle[2:4])
		return k, true
	}
	if len(handle) < 4 || handle[0] != 1 || handle[1] != 0 || int(handle[2]) >= len(keyLengths) {
		return k, false
	}
	k.kind = handle[2]
	n := keyLengths[k.kind]
	if len(handle) < 4+n {
		return k, false
	}
	copy(k.fsid[:n], handle[4:])
	return k, true
}

// NewExports returns an Exports of the exports with these paths, at most MaxExports, of which it knows no handle.
func NewExports(paths []string) *Exports {
	x := &Exports{strange: make(chan struct{}, 1)}
	for _, p := range paths {
		x.paths = append(x.paths, path.Clean(p))
	}
	x.Know(nil)
	return x
}

// Paths returns the paths, by the index of the exports.
func (x *Exports) Paths() []string { return x.paths }

// Know replaces what x knows by the handles of the roots of exports, by their paths. It takes those of other exports,
// too: a handle with such a key is elsewhere. It returns the paths whose handles have a form that says nothing of the
// export.
func (x *Exports) Know(roots map[string][][]byte) (formless []string) {
	k := &exportKeys{of: make(map[handleKey]uint64)}
	for i, p := range x.paths {
		if p == "/" {
			k.root |= 1 << i
		}
	}
	for p, handles := range roots {
		bit := uint64(Elsewhere)
		if i := slices.Index(x.paths, path.Clean(p)); i >= 0 {
			bit = 1 << i
		}
		for _, h := range handles {
			key, ok := keyOf(h)
			if !ok {
				formless = append(formless, p)
				continue
			}
			k.of[key] |= bit // two servers may give out one key
			if key.kind == keyExportID {
				k.named |= bit
			}
			if key.kind == keyExportID || key == (handleKey{kind: keyNumber}) {
				k.root |= bit
			}
		}
	}
	x.known.Store(k)
	slices.Sort(formless)
	return slices.Compact(formless)
}

// Missing returns the paths of x of which roots, as for Know, has no handle.
func (x *Exports) Missing(roots map[string][][]byte) (missing []string) {
	for _, p := range x.paths {
		if len(roots[p]) == 0 {
			missing = append(missing, p)
		}
	}
	return missing
}

// Strange is sent to when a Call has named a handle that is not known.
func (x *Exports) Strange() <-chan struct{} { return x.strange }

// Touched returns what the Call h is about. changes is whether it may change files: ulb.Analysis.Changes.
func (x *Exports) Touched(h *oncrpc.Call, changes bool) (t Touched) {
	if h.Procedure == 0 {
		return t
	}
	switch h.Program {
	case oncrpc.ProgramNFS, oncrpc.ProgramNFSACL, oncrpc.ProgramMount, oncrpc.ProgramNLM:
	default:
		return t
	}
	start, end, ok := h.Arguments()
	if !ok {
		return everything(changes)
	}
	m := h.Message[:end]
	a := xdr.NewCursor(m, start)
	c := toucher{x: x, known: x.known.Load()}
	switch {
	case h.Program == oncrpc.ProgramMount:
		return x.mount(h.Procedure, m, &a)
	case h.Program == oncrpc.ProgramNLM:
		ok = c.lock(h.Procedure, m, &a)
	case h.Program == oncrpc.ProgramNFS && h.Version == 4:
		ok = c.compound(m, &a)
	default:
		ok = c.plain(h, m, &a)
	}
	if !ok || !a.OK() {
		return everything(changes)
	}
	if t = c.Touched; !changes {
		t.Changes = 0
	}
	return t
}

// mount is for MOUNT: MNT names a path, and the other procedures give out no handle.
func (x *Exports) mount(procedure uint32, m []byte, a *xdr.Cursor) (t Touched) {
	if procedure != 1 {
		return t
	}
	pos, n := a.Opaque()
	if !a.OK() {
		return everything(false)
	}
	t.May = Elsewhere
	p, longest := path.Clean(string(m[pos:pos+n])), -1
	for i, e := range x.paths {
		if len(e) > longest && within(p, e) {
			t.May, longest = 1<<i, len(e)
		}
	}
	return t
}

// within reports whether the path p is e, or below it.
func within(p, e string) bool {
	return p == e || e == "/" || strings.HasPrefix(p, e) && p[len(e)] == '/'
}

// A toucher collects what a Call touches.
type toucher struct {
	Touched
	x     *Exports
	known *exportKeys
}

// A standpoint is what is known of a current or saved filehandle of NFSv4: where it may be.
type standpoint struct {
	may  uint64
	sure bool // it is a handle that is known, in the one export of may
}

// of returns where the handle h is.
func (c *toucher) of(h []byte) standpoint {
	k, ok := keyOf(h)
	if ok {
		if at := c.known.of[k]; at != 0 {
			return standpoint{at, at&(at-1) == 0}
		}
	}
	if ok && k.numbered() {
		return standpoint{Elsewhere, true}
	}
	select {
	case c.x.strange <- struct{}{}:
	default:
	}
	return standpoint{^uint64(0), false}
}

// touch is for an operation on a file at s. What comes before PUTFH, such as SEQUENCE, is about none.
func (c *toucher) touch(s standpoint, changes bool) {
	if s.may == 0 {
		return
	}
	c.May |= s.may
	c.Unsure = c.Unsure || !s.sure
	if changes {
		c.Changes |= s.may
	}
}

// handle consumes a handle of the arguments, and touches it.
func (c *toucher) handle(version uint32, m []byte, a *xdr.Cursor) {
	pos, n := a.Pos(), 32
	if version == 2 {
		a.Skip(32)
	} else {
		pos, n = a.Opaque()
	}
	if a.OK() {
		c.touch(c.of(m[pos:pos+n]), true)
	}
}

// plain is for NFSv2, NFSv3 and NFSACL. The arguments of every procedure begin with a handle, and those of two have another one.
func (c *toucher) plain(h *oncrpc.Call, m []byte, a *xdr.Cursor) bool {
	if h.Version < 2 || h.Version > 3 {
		return false
	}
	rename, link := uint32(14), uint32(15)
	if h.Version == 2 {
		rename, link = 11, 12
	}
	c.handle(h.Version, m, a)
	if h.Program == oncrpc.ProgramNFSACL {
		return true
	}
	switch h.Procedure {
	case rename:
		a.Opaque()
		c.handle(h.Version, m, a)
	case link:
		c.handle(h.Version, m, a)
	}
	return h.Procedure <= 21
}

// lock is for NLM: cookie, flags, and a lock or a share, which begin with caller_name and the handle. What only answers a Call, or is
// about a host, names no file.
func (c *toucher) lock(procedure uint32, m []byte, a *xdr.Cursor) bool {
	flags := 0
	switch procedure {
	case 1, 5, 6, 10: // TEST, GRANTED
		flags = 1
	case 2, 3, 7, 8, 22: // LOCK, CANCEL, NM_LOCK
		flags = 2
	case 4, 9, 20, 21: // UNLOCK, SHARE, UNSHARE
	case 11, 12, 13, 14, 15, 16, 23: // _RES, SM_NOTIFY, FREE_ALL
		return true
	default:
		return false
	}
	a.Opaque()
	a.Skip(4 * flags)
	a.Opaque()
	c.handle(4, m, a)
	return true
}

// compound is for NFSv4: it follows the current and the saved filehandle. RFC 8881 Section 16.2.3.
func (c *toucher) compound(m []byte, a *xdr.Cursor) bool {
	w := ulb.Walk{Cursor: *a}
	w.Opaque()
	minor := w.Uint32()
	count := w.Uint32()
	if !w.OK() || minor >= uint32(len(lastOp)) || count > maxOps {
		return false
	}
	var current, saved standpoint // nowhere
	for range count {
		number := w.Uint32()
		o := op(minor, number)
		if !w.OK() || o == nil {
			return false
		}
		pos := w.Pos()
		if o.args.Walk(&w); !w.OK() {
			return false
		}
		changes := !o.keeps && (o.keepsIf == nil || !o.keepsIf(m, pos))
		switch number {
		case opPutFH, opPutPubFH, opPutRootFH, opRestoreFH, opSaveFH, opGetFH:
		case opAccess, opGetattr, opLookup, opLookupp, opNverify, opSecinfo, opSecinfoNoName, opVerify:
			c.look(current)
		case opLink, opRename:
			c.touch(saved, true)
			c.touch(current, true)
		case opCopy, opClone:
			c.touch(saved, false)
			c.touch(current, true)
		default:
			c.touch(current, changes)
		}
		switch move, octets := MoveOf(number, m, pos); move {
		case Puts:
			current = c.of(octets)
		case PutsRoot:
			current = standpoint{c.known.root | Elsewhere, false}
		case Restores:
			current = saved
		case Saves:
			saved = current
		case Enters:
			current = c.enter(current, octets)
		case GoesUp:
			current = standpoint{^uint64(0), false}
		case Stays, EntersAttrs: // named attributes are in the export of their file
		}
	}
	return w.Len() == 0
}

// look is for an operation that finds the way. What is elsewhere, or not known, it must find, too.
func (c *toucher) look(s standpoint) {
	if s.sure && s.may != Elsewhere {
		c.touch(s, false)
	}
}

// enter returns where a name leads from s.
func (c *toucher) enter(s standpoint, name []byte) standpoint {
	if name == nil {
		return standpoint{^uint64(0), false} // it is cut off
	}
	s.sure = false
	s.may |= c.known.named
	for i, p := range c.x.paths {
		if path.Base(p) == string(name) {
			s.may |= 1 << i
		}
	}
	return s
}
