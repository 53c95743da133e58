package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5"
	nfs "github.com/willscott/go-nfs"
	nfsfile "github.com/willscott/go-nfs/file"
)

// The bounds of the demo's file system.
const (
	demoCapacity    = 2 << 30 // octets of file contents
	demoMaxNodes    = 1 << 20
	demoMaxFileSize = 1 << 40
	demoMaxName     = nfs.PathNameMax
	demoBlock       = 128 << 10 // unit of allocation; blocks never written are holes
)

// A demoFS is the tree of files behind the demo's NFS server: POSIX in memory, as
// far as go-nfs can ask for it.
//
// It is not go-billy's memfs because a kernel's NFS client notices what memfs
// gets wrong: every Stat says the file was modified just now, so nothing is
// ever cached; renaming "a" takes "ab" along; O_EXCL without O_CREATE, which
// go-nfs uses to truncate, fails; maps are shared by connections without a lock;
// and a growing file is copied as it grows.
//
// Names lead to nodes without following symbolic links: an NFS client follows
// them itself.
type demoFS struct {
	now func() time.Time // constant

	mu    sync.RWMutex // guards everything below it, the nodes included; a leaf
	root  *demoNode
	nodes map[uint64]*demoNode // by id; ids are never reused
	last  uint64
	used  int64 // octets of blocks
}

// A demoNode is a file, directory or symbolic link.
type demoNode struct {
	id       uint64
	parent   *demoNode // nil for the root and for removed nodes
	name     string
	mode     os.FileMode // type and permissions
	uid, gid uint32
	mtime    time.Time

	children map[string]*demoNode // of a directory
	version  uint32               // of a directory: counts changes of children
	target   string               // of a symbolic link

	size   int64
	blocks map[int64][]byte // of a file: by number; absent is a hole
}

func newDemoFS() *demoFS { return newDemoFSAt(time.Now) }

// newDemoFSAt is newDemoFS with another clock.
func newDemoFSAt(now func() time.Time) *demoFS {
	fs := &demoFS{now: now, nodes: make(map[uint64]*demoNode)}
	fs.root = fs.newNode(os.ModeDir | 0o777)
	return fs
}

// newNode makes a node that is in no directory yet. mu is held.
func (fs *demoFS) newNode(mode os.FileMode) *demoNode {
	fs.last++
	n := &demoNode{id: fs.last, mode: mode, mtime: fs.now()}
	switch {
	case mode.IsDir():
		n.children = make(map[string]*demoNode)
	case mode.IsRegular():
		n.blocks = make(map[int64][]byte)
	}
	fs.nodes[n.id] = n
	return n
}

// lookup finds the node at name. mu is held.
func (fs *demoFS) lookup(name string) (*demoNode, error) {
	n := fs.root
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." {
			continue
		}
		if !n.mode.IsDir() {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.children[part]
		if !ok {
			return nil, os.ErrNotExist
		}
		n = next
	}
	return n, nil
}

// lookupParent finds the directory that holds name or could. mu is held.
func (fs *demoFS) lookupParent(name string) (dir *demoNode, base string, err error) {
	name = path.Clean("/" + name)
	dir, err = fs.lookup(path.Dir(name))
	switch base = path.Base(name); {
	case err != nil:
		return nil, "", err
	case !dir.mode.IsDir():
		return nil, "", syscall.ENOTDIR
	case base == "/":
		return nil, "", syscall.EBUSY
	case len(base) > demoMaxName:
		return nil, "", syscall.ENAMETOOLONG
	}
	return dir, base, nil
}

// enter puts n into dir. mu is held.
func (fs *demoFS) enter(dir *demoNode, name string, n *demoNode) {
	dir.children[name] = n
	n.parent, n.name = dir, name
	fs.changed(dir)
}

// leave takes n out of its directory. mu is held.
func (fs *demoFS) leave(n *demoNode) {
	delete(n.parent.children, n.name)
	fs.changed(n.parent)
	n.parent = nil
}

func (fs *demoFS) changed(n *demoNode) {
	n.mtime = fs.now()
	n.version++
}

// create makes a node at name, where there is none. mu is held.
func (fs *demoFS) create(name string, mode os.FileMode) (*demoNode, error) {
	dir, base, err := fs.lookupParent(name)
	if err != nil {
		return nil, err
	}
	if _, ok := dir.children[base]; ok {
		return nil, os.ErrExist
	}
	if len(fs.nodes) >= demoMaxNodes {
		return nil, syscall.ENOSPC
	}
	n := fs.newNode(mode)
	fs.enter(dir, base, n)
	return n, nil
}

// forget drops a node that left its directory, and its contents. mu is held.
func (fs *demoFS) forget(n *demoNode) {
	if n.mode.IsRegular() {
		fs.truncate(n, 0)
	}
	delete(fs.nodes, n.id)
}

// Create opens name for reading and writing, empty.
func (fs *demoFS) Create(name string) (billy.File, error) {
	return fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// Open opens name for reading.
func (fs *demoFS) Open(name string) (billy.File, error) { return fs.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile is os.OpenFile. O_EXCL without O_CREATE means nothing.
func (fs *demoFS) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.lookup(name)
	switch {
	case errors.Is(err, os.ErrNotExist) && flag&os.O_CREATE != 0:
		n, err = fs.create(name, perm.Perm())
	case err == nil && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		err = os.ErrExist
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	if !n.mode.IsRegular() {
		return nil, pathError("open", name, syscall.EINVAL)
	}
	if flag&os.O_TRUNC != 0 {
		fs.truncate(n, 0)
	}
	f := &demoFile{fs: fs, node: n, name: name}
	if flag&os.O_APPEND != 0 {
		f.pos = n.size
	}
	return f, nil
}

// Stat is Lstat: NFS clients follow symbolic links themselves.
func (fs *demoFS) Stat(name string) (os.FileInfo, error) { return fs.Lstat(name) }

// Lstat describes name.
func (fs *demoFS) Lstat(name string) (os.FileInfo, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.lookup(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(), nil
}

// ReadDir describes what is in directory name, sorted.
func (fs *demoFS) ReadDir(name string) ([]os.FileInfo, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.lookup(name)
	if err == nil && !n.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	infos := make([]os.FileInfo, 0, len(n.children))
	for _, c := range n.children {
		infos = append(infos, c.info())
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int { return strings.Compare(a.Name(), b.Name()) })
	return infos, nil
}

// MkdirAll makes directory name and those above it.
func (fs *demoFS) MkdirAll(name string, perm os.FileMode) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	at := ""
	for part := range strings.SplitSeq(path.Clean("/"+name), "/") {
		at += "/" + part
		n, err := fs.lookup(at)
		if errors.Is(err, os.ErrNotExist) {
			n, err = fs.create(at, os.ModeDir|perm.Perm())
		}
		if err == nil && !n.mode.IsDir() {
			err = syscall.ENOTDIR
		}
		if err != nil {
			return pathError("mkdir", name, err)
		}
	}
	return nil
}

// Rename moves from to to, replacing a file or an empty directory there.
func (fs *demoFS) Rename(from, to string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.lookup(from)
	if err != nil {
		return pathError("rename", from, err)
	}
	dir, base, err := fs.lookupParent(to)
	if err != nil {
		return pathError("rename", to, err)
	}
	for d := dir; d != nil; d = d.parent {
		if d == n {
			return pathError("rename", to, syscall.EINVAL) // into itself
		}
	}
	old := dir.children[base]
	switch {
	case old == nil:
	case old == n:
		return nil
	case n.mode.IsDir() && !old.mode.IsDir():
		return pathError("rename", to, syscall.ENOTDIR)
	case !n.mode.IsDir() && old.mode.IsDir():
		return pathError("rename", to, syscall.EISDIR)
	case len(old.children) != 0:
		return pathError("rename", to, syscall.ENOTEMPTY)
	default:
		fs.leave(old)
		fs.forget(old)
	}
	fs.leave(n)
	fs.enter(dir, base, n)
	return nil
}

// Remove removes a file, a symbolic link or an empty directory.
func (fs *demoFS) Remove(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.lookup(name)
	switch {
	case err != nil:
	case n == fs.root:
		err = syscall.EBUSY
	case len(n.children) != 0:
		err = syscall.ENOTEMPTY
	default:
		fs.leave(n)
		fs.forget(n)
	}
	if err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

// Symlink makes link, which says target.
func (fs *demoFS) Symlink(target, link string) error {
	if len(target) > 4096 {
		return pathError("symlink", link, syscall.ENAMETOOLONG)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.create(link, os.ModeSymlink|0o777)
	if err != nil {
		return pathError("symlink", link, err)
	}
	n.target, n.size = target, int64(len(target))
	return nil
}

// Readlink is what link says.
func (fs *demoFS) Readlink(link string) (string, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.lookup(link)
	if err == nil && n.mode&os.ModeSymlink == 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return "", pathError("readlink", link, err)
	}
	return n.target, nil
}

// Chmod sets permissions. With Lchown, Chown and Chtimes it makes demoFS a
// billy.Change.
func (fs *demoFS) Chmod(name string, mode os.FileMode) error {
	return fs.change("chmod", name, func(n *demoNode) { n.mode = n.mode&^os.ModePerm | mode.Perm() })
}

// Lchown sets the owner.
func (fs *demoFS) Lchown(name string, uid, gid int) error {
	return fs.change("lchown", name, func(n *demoNode) { n.uid, n.gid = uint32(uid), uint32(gid) })
}

// Chown is Lchown: nothing follows symbolic links.
func (fs *demoFS) Chown(name string, uid, gid int) error { return fs.Lchown(name, uid, gid) }

// Chtimes sets the time of modification; no other is kept.
func (fs *demoFS) Chtimes(name string, _, mtime time.Time) error {
	return fs.change("chtimes", name, func(n *demoNode) { n.mtime = mtime })
}

func (fs *demoFS) change(op, name string, f func(*demoNode)) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.lookup(name)
	if err != nil {
		return pathError(op, name, err)
	}
	f(n)
	return nil
}

// Join is the path of elem below the root. It is absolute, so that no name of a
// client's leads above the root.
func (fs *demoFS) Join(elem ...string) string { return path.Join("/", path.Join(elem...)) }

// Root is the root's path.
func (fs *demoFS) Root() string { return "/" }

// Chroot is not wanted by NFS.
func (fs *demoFS) Chroot(string) (billy.Filesystem, error) { return nil, billy.ErrNotSupported }

// TempFile is not wanted by NFS.
func (fs *demoFS) TempFile(string, string) (billy.File, error) { return nil, billy.ErrNotSupported }

// Capabilities says that everything but locks works.
func (fs *demoFS) Capabilities() billy.Capability {
	return billy.DefaultCapabilities &^ billy.LockCapability
}

// writeAt is for regular files. mu is held.
func (fs *demoFS) writeAt(n *demoNode, p []byte, off int64) (int, error) {
	if off < 0 || off > demoMaxFileSize-int64(len(p)) {
		return 0, syscall.EFBIG
	}
	done := 0
	for done < len(p) {
		number, in := off/demoBlock, off%demoBlock
		b := n.blocks[number]
		if b == nil {
			if fs.used+demoBlock > demoCapacity {
				break
			}
			b = make([]byte, demoBlock)
			n.blocks[number] = b
			fs.used += demoBlock
		}
		c := copy(b[in:], p[done:])
		done += c
		off += int64(c)
	}
	n.size = max(n.size, off)
	n.mtime = fs.now()
	if done < len(p) {
		return done, syscall.ENOSPC
	}
	return done, nil
}

// readAt is for regular files. mu is held for reading.
func (n *demoNode) readAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	if off >= n.size {
		return 0, io.EOF
	}
	var err error
	if left := n.size - off; int64(len(p)) > left {
		p, err = p[:left], io.EOF
	}
	for done := 0; done < len(p); {
		number, in := off/demoBlock, off%demoBlock
		part := p[done:min(len(p), done+int(demoBlock-in))]
		if b := n.blocks[number]; b != nil {
			copy(part, b[in:])
		} else {
			clear(part)
		}
		done += len(part)
		off += int64(len(part))
	}
	return len(p), err
}

// truncate sets the size; what is cut off reads as zeros should the file grow
// again. mu is held.
func (fs *demoFS) truncate(n *demoNode, size int64) {
	for number, b := range n.blocks {
		switch begin := number * demoBlock; {
		case begin >= size:
			delete(n.blocks, number)
			fs.used -= demoBlock
		case begin+demoBlock > size:
			clear(b[size-begin:])
		}
	}
	n.size = size
	n.mtime = fs.now()
}

// A demoFile is an open file of a demoFS. It is used by one goroutine.
type demoFile struct {
	fs   *demoFS
	node *demoNode
	name string
	pos  int64
}

func (f *demoFile) Name() string { return f.name }

func (f *demoFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *demoFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	return f.node.readAt(p, off)
}

func (f *demoFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.nodes[f.node.id] != f.node {
		return 0, syscall.ESTALE // removed meanwhile: its blocks would never be given back
	}
	n, err := f.fs.writeAt(f.node, p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *demoFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		f.fs.mu.RLock()
		offset += f.node.size
		f.fs.mu.RUnlock()
	}
	if offset < 0 {
		return 0, syscall.EINVAL
	}
	f.pos = offset
	return offset, nil
}

func (f *demoFile) Truncate(size int64) error {
	if size < 0 || size > demoMaxFileSize {
		return &nfs.NFSStatusError{NFSStatus: nfs.NFSStatusFBig, WrappedErr: syscall.EFBIG}
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.truncate(f.node, size)
	return nil
}

func (f *demoFile) Close() error  { return nil }
func (f *demoFile) Lock() error   { return billy.ErrNotSupported }
func (f *demoFile) Unlock() error { return billy.ErrNotSupported }

// A demoInfo is a node as it was when it was described.
type demoInfo struct {
	name  string
	size  int64
	mode  os.FileMode
	mtime time.Time
	sys   nfsfile.FileInfo
}

func (n *demoNode) info() os.FileInfo {
	i := &demoInfo{name: n.name, size: n.size, mode: n.mode, mtime: n.mtime, sys: nfsfile.FileInfo{
		Nlink: 1, UID: n.uid, GID: n.gid, Fileid: n.id,
	}}
	if n.mode.IsDir() {
		i.size, i.sys.Nlink = 4096, 2
	}
	return i
}

func (i *demoInfo) Name() string       { return i.name }
func (i *demoInfo) Size() int64        { return i.size }
func (i *demoInfo) Mode() os.FileMode  { return i.mode }
func (i *demoInfo) ModTime() time.Time { return i.mtime }
func (i *demoInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *demoInfo) Sys() any           { return &i.sys } // what go-nfs looks for

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}

// path is where n is, as go-nfs wants it. mu is held.
func (n *demoNode) path(root *demoNode) ([]string, error) {
	var parts []string
	for ; n != root; n = n.parent {
		if n == nil {
			return nil, fmt.Errorf("node is in no directory: %w", syscall.ESTALE)
		}
		parts = append(parts, n.name)
	}
	slices.Reverse(parts)
	return parts, nil
}
