package demo

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5"
	nfs "github.com/willscott/go-nfs"
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

func newDemoFS() *demoFS { return newDemoFSAt(time.Now) }

// newDemoFSAt is newDemoFS with another clock.
func newDemoFSAt(now func() time.Time) *demoFS {
	fs := &demoFS{now: now, nodes: make(map[uint64]*demoNode)}
	fs.root = fs.newNode(os.ModeDir | 0o777)
	return fs
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

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}
