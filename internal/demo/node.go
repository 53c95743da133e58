package demo

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	nfsfile "github.com/willscott/go-nfs/file"
)

// A node is a file, directory or symbolic link.
type node struct {
	id       uint64
	parent   *node       // nil for the root and for removed nodes
	name     string      // in parent
	mode     os.FileMode // type and permissions
	uid, gid uint32
	mtime    time.Time

	children map[string]*node // of a directory
	version  uint32           // of a directory: incremented when children change
	target   string           // of a symbolic link

	size   int64
	blocks map[int64][]byte // of a file: by offset / blockSize; a missing block is a hole
}

// info returns the attributes of n. The caller holds mu.
func (n *node) info() os.FileInfo {
	i := &nodeInfo{name: n.name, size: n.size, mode: n.mode, mtime: n.mtime, sys: nfsfile.FileInfo{
		Nlink: 1, UID: n.uid, GID: n.gid, Fileid: n.id,
	}}
	if n.mode.IsDir() {
		i.size, i.sys.Nlink = 4096, 2
	}
	return i
}

// A nodeInfo is a copy of the attributes of a node.
type nodeInfo struct {
	name  string
	size  int64
	mode  os.FileMode
	mtime time.Time
	sys   nfsfile.FileInfo
}

func (i *nodeInfo) Name() string { return i.name }

func (i *nodeInfo) Size() int64 { return i.size }

func (i *nodeInfo) Mode() os.FileMode { return i.mode }

func (i *nodeInfo) ModTime() time.Time { return i.mtime }

func (i *nodeInfo) IsDir() bool { return i.mode.IsDir() }

func (i *nodeInfo) Sys() any { return &i.sys } // go-nfs expects a *file.FileInfo

// path returns the names from root to n. It returns an error if n was removed. The
// caller holds mu.
func (n *node) path(root *node) ([]string, error) {
	var parts []string
	for ; n != root; n = n.parent {
		if n == nil {
			return nil, fmt.Errorf("the file was removed: %w", syscall.ESTALE)
		}
		parts = append(parts, n.name)
	}
	slices.Reverse(parts)
	return parts, nil
}
