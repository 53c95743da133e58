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

// The limits of a memFS.
const (
	capacity    = 2 << 30 // octets of blocks
	maxNodes    = 1 << 20
	maxFileSize = 1 << 40
	maxName     = nfs.PathNameMax
	blockSize   = 128 << 10 // files are allocated in blocks of this length
)

// A memFS is the tree of files behind the NFS server: a POSIX file system in memory, as
// far as go-nfs uses one.
//
// The memfs of go-billy does not suit the NFS client of a kernel. Every Stat reports
// that the file was modified just now, so the client caches nothing. Renaming "a" also
// renames "ab". O_EXCL without O_CREATE fails, and go-nfs truncates with it. Connections
// share maps without a lock. Growing a file copies it.
//
// A memFS does not follow symbolic links: NFS clients follow them themselves.
type memFS struct {
	now func() time.Time // constant after newMemFS

	mu    sync.RWMutex // guards the fields below and all nodes; a leaf
	root  *node
	nodes map[uint64]*node // by node.id; an id is never used again
	last  uint64           // the last id given to a node
	used  int64            // octets of blocks
}

// newMemFS returns an empty file system whose clock is now.
func newMemFS(now func() time.Time) *memFS {
	fs := &memFS{now: now, nodes: make(map[uint64]*node)}
	fs.root = fs.newNode(os.ModeDir | 0o777)
	return fs
}

// Create creates or truncates the file name and opens it for reading and writing.
func (fs *memFS) Create(name string) (billy.File, error) {
	return fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// Open opens the file name for reading.
func (fs *memFS) Open(name string) (billy.File, error) { return fs.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile is like os.OpenFile. It ignores O_EXCL without O_CREATE.
func (fs *memFS) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
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
	f := &openFile{fs: fs, node: n, name: name}
	if flag&os.O_APPEND != 0 {
		f.pos = n.size
	}
	return f, nil
}

// Stat is the same as Lstat: NFS clients follow symbolic links themselves.
func (fs *memFS) Stat(name string) (os.FileInfo, error) { return fs.Lstat(name) }

// Lstat returns the attributes of name.
func (fs *memFS) Lstat(name string) (os.FileInfo, error) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	n, err := fs.lookup(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(), nil
}

// ReadDir returns the entries of the directory name, sorted by name.
func (fs *memFS) ReadDir(name string) ([]os.FileInfo, error) {
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

// MkdirAll creates the directory name and its parents.
func (fs *memFS) MkdirAll(name string, perm os.FileMode) error {
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

// Rename moves from to to. It replaces a file or an empty directory there.
func (fs *memFS) Rename(from, to string) error {
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
			return pathError("rename", to, syscall.EINVAL) // a directory cannot move into itself
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
		fs.unlink(old)
		fs.free(old)
	}
	fs.unlink(n)
	fs.link(dir, base, n)
	return nil
}

// Remove removes a file, a symbolic link or an empty directory.
func (fs *memFS) Remove(name string) error {
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
		fs.unlink(n)
		fs.free(n)
	}
	if err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

// Symlink creates the symbolic link, which points to target.
func (fs *memFS) Symlink(target, link string) error {
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

// Readlink returns the target of link.
func (fs *memFS) Readlink(link string) (string, error) {
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

// Chmod sets the permissions of name. Together with Lchown, Chown and Chtimes it
// implements billy.Change.
func (fs *memFS) Chmod(name string, mode os.FileMode) error {
	return fs.change("chmod", name, func(n *node) { n.mode = n.mode&^os.ModePerm | mode.Perm() })
}

// Lchown sets the owner and the group of name.
func (fs *memFS) Lchown(name string, uid, gid int) error {
	return fs.change("lchown", name, func(n *node) { n.uid, n.gid = uint32(uid), uint32(gid) })
}

// Chown is the same as Lchown: a memFS does not follow symbolic links.
func (fs *memFS) Chown(name string, uid, gid int) error { return fs.Lchown(name, uid, gid) }

// Chtimes sets the modification time of name. A memFS stores no other time.
func (fs *memFS) Chtimes(name string, _, mtime time.Time) error {
	return fs.change("chtimes", name, func(n *node) { n.mtime = mtime })
}

func (fs *memFS) change(op, name string, f func(*node)) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n, err := fs.lookup(name)
	if err != nil {
		return pathError(op, name, err)
	}
	f(n)
	return nil
}

// Join joins elem to an absolute path, so that no name leads above the root.
func (fs *memFS) Join(elem ...string) string { return path.Join("/", path.Join(elem...)) }

// Root returns the path of the root.
func (fs *memFS) Root() string { return "/" }

// Chroot is not supported: go-nfs does not call it.
func (fs *memFS) Chroot(string) (billy.Filesystem, error) { return nil, billy.ErrNotSupported }

// TempFile is not supported: go-nfs does not call it.
func (fs *memFS) TempFile(string, string) (billy.File, error) { return nil, billy.ErrNotSupported }

// Capabilities reports that everything is supported except locks.
func (fs *memFS) Capabilities() billy.Capability {
	return billy.DefaultCapabilities &^ billy.LockCapability
}

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}
