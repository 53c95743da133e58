package demo

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	nfsfile "github.com/willscott/go-nfs/file"
)

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

func (n *demoNode) info() os.FileInfo {
	i := &demoInfo{name: n.name, size: n.size, mode: n.mode, mtime: n.mtime, sys: nfsfile.FileInfo{
		Nlink: 1, UID: n.uid, GID: n.gid, Fileid: n.id,
	}}
	if n.mode.IsDir() {
		i.size, i.sys.Nlink = 4096, 2
	}
	return i
}

// A demoInfo is a node as it was when it was described.
type demoInfo struct {
	name  string
	size  int64
	mode  os.FileMode
	mtime time.Time
	sys   nfsfile.FileInfo
}

func (i *demoInfo) Name() string { return i.name }

func (i *demoInfo) Size() int64 { return i.size }

func (i *demoInfo) Mode() os.FileMode { return i.mode }

func (i *demoInfo) ModTime() time.Time { return i.mtime }

func (i *demoInfo) IsDir() bool { return i.mode.IsDir() }

func (i *demoInfo) Sys() any { return &i.sys } // what go-nfs looks for

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
