package demo

import (
	"os"
	"path"
	"strings"
	"syscall"
)

// newNode returns a new node that is in no directory. The caller holds mu.
func (fs *memFS) newNode(mode os.FileMode) *node {
	fs.last++
	n := &node{id: fs.last, mode: mode, mtime: fs.now()}
	switch {
	case mode.IsDir():
		n.children = make(map[string]*node)
	case mode.IsRegular():
		n.blocks = make(map[int64][]byte)
	}
	fs.nodes[n.id] = n
	return n
}

// lookup returns the node at name. The caller holds mu.
func (fs *memFS) lookup(name string) (*node, error) {
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

// lookupParent returns the directory of name, which need not exist, and the last element
// of name. The caller holds mu.
func (fs *memFS) lookupParent(name string) (dir *node, base string, err error) {
	name = path.Clean("/" + name)
	dir, err = fs.lookup(path.Dir(name))
	switch base = path.Base(name); {
	case err != nil:
		return nil, "", err
	case !dir.mode.IsDir():
		return nil, "", syscall.ENOTDIR
	case base == "/":
		return nil, "", syscall.EBUSY
	case len(base) > maxName:
		return nil, "", syscall.ENAMETOOLONG
	}
	return dir, base, nil
}

// link puts n into dir. The caller holds mu.
func (fs *memFS) link(dir *node, name string, n *node) {
	dir.children[name] = n
	n.parent, n.name = dir, name
	fs.changed(dir)
}

// unlink removes n from its directory. The caller holds mu.
func (fs *memFS) unlink(n *node) {
	delete(n.parent.children, n.name)
	fs.changed(n.parent)
	n.parent = nil
}

// changed records a change of the directory n. The caller holds mu.
func (fs *memFS) changed(n *node) {
	n.mtime = fs.now()
	n.version++
}

// create creates a node at name. It returns an error if there is one. The caller holds
// mu.
func (fs *memFS) create(name string, mode os.FileMode) (*node, error) {
	dir, base, err := fs.lookupParent(name)
	if err != nil {
		return nil, err
	}
	if _, ok := dir.children[base]; ok {
		return nil, os.ErrExist
	}
	if len(fs.nodes) >= maxNodes {
		return nil, syscall.ENOSPC
	}
	n := fs.newNode(mode)
	fs.link(dir, base, n)
	return n, nil
}

// free frees the contents of a node that is in no directory. The caller holds mu.
func (fs *memFS) free(n *node) {
	if n.mode.IsRegular() {
		fs.truncate(n, 0)
	}
	delete(fs.nodes, n.id)
}
