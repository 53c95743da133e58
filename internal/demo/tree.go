package demo

import (
	"os"
	"path"
	"strings"
	"syscall"
)

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
