package demo

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"

	"github.com/go-git/go-billy/v5"
	nfs "github.com/willscott/go-nfs"
)

// A handler implements nfs.Handler for a memFS: mounts, file handles and listings.
//
// A file handle has 8 octets that differ between runs and the id of a node. As NFS
// requires, it stays valid when the node is renamed and is stale when the node is
// removed. The caching handler of go-nfs identifies nodes by path instead, and searches
// all handles on every Call.
type handler struct {
	fs  *memFS
	run uint64 // the first half of every handle

	mu       sync.Mutex // guards listings; a leaf
	listings []listing
}

// A listing is a directory that a client reads page by page. The cookies of READDIR are
// indices into entries, so entries does not change when the directory does.
type listing struct {
	path     string
	verifier uint64
	entries  []fs.FileInfo
}

// maxListings bounds the listings that are kept. A client that reads from a directory
// whose listing was dropped has to start again if the directory has changed.
const maxListings = 64

// newHandler returns a handler for fs with random octets in its handles.
func newHandler(fs *memFS) *handler {
	var run [8]byte
	rand.Read(run[:]) // never fails
	return &handler{fs: fs, run: binary.BigEndian.Uint64(run[:])}
}

// A mountPoint is a directory that a client mounts. Mount returns it and go-nfs passes
// it to ToHandle.
type mountPoint struct {
	*memFS
	dir string
}

// Mount lets every client mount every directory.
func (h *handler) Mount(_ context.Context, _ net.Conn, r nfs.MountRequest) (nfs.MountStatus, billy.Filesystem, []nfs.AuthFlavor) {
	dir := h.fs.Join(string(r.Dirpath))
	switch info, err := h.fs.Lstat(dir); {
	case err != nil:
		return nfs.MountStatusErrNoEnt, h.fs, nil
	case !info.IsDir():
		return nfs.MountStatusErrNotDir, h.fs, nil
	}
	return nfs.MountStatusOk, &mountPoint{h.fs, dir}, []nfs.AuthFlavor{nfs.AuthFlavorUnix, nfs.AuthFlavorNull}
}

// Change returns the file system, which can change attributes.
func (h *handler) Change(billy.Filesystem) billy.Change { return h.fs }

// FSStat reports the capacity, as df(1) shows it.
func (h *handler) FSStat(_ context.Context, _ billy.Filesystem, s *nfs.FSStat) error {
	h.fs.mu.RLock()
	defer h.fs.mu.RUnlock()
	s.TotalSize = capacity
	s.FreeSize = uint64(capacity - h.fs.used)
	s.AvailableSize = s.FreeSize
	s.TotalFiles = maxNodes
	s.FreeFiles = uint64(maxNodes - len(h.fs.nodes))
	s.AvailableFiles = s.FreeFiles
	return nil
}

// ToHandle returns the handle of the node at path. The handle is stale if there is no
// such node.
func (h *handler) ToHandle(fs billy.Filesystem, path []string) []byte {
	name := h.fs.Join(path...)
	if m, ok := fs.(*mountPoint); ok {
		name = h.fs.Join(m.dir, name)
	}
	h.fs.mu.RLock()
	defer h.fs.mu.RUnlock()
	var id uint64
	if n, err := h.fs.lookup(name); err == nil {
		id = n.id
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, h.run), id)
}

// FromHandle returns the path of the node with this handle.
func (h *handler) FromHandle(handle []byte) (billy.Filesystem, []string, error) {
	if len(handle) != 16 || binary.BigEndian.Uint64(handle) != h.run {
		return nil, nil, fmt.Errorf("handle %x is not from this run: %w", handle, syscall.ESTALE)
	}
	h.fs.mu.RLock()
	defer h.fs.mu.RUnlock()
	n := h.fs.nodes[binary.BigEndian.Uint64(handle[8:])]
	path, err := n.path(h.fs.root)
	if err != nil {
		return nil, nil, err
	}
	return h.fs, path, nil
}

// InvalidateHandle does nothing: the handle of a removed node is stale already.
func (h *handler) InvalidateHandle(billy.Filesystem, []byte) error { return nil }

// HandleLimit returns how many handles stay valid: one for each node.
func (h *handler) HandleLimit() int { return maxNodes }

// VerifierFor stores a listing for the pages that follow, and returns its verifier. The
// verifier stays the same until a name is added to or removed from the directory.
func (h *handler) VerifierFor(path string, contents []fs.FileInfo) uint64 {
	h.fs.mu.RLock()
	var v uint64
	if n, err := h.fs.lookup(path); err == nil {
		v = n.id<<32 | uint64(n.version) + 1
	}
	h.fs.mu.RUnlock()

	h.mu.Lock()
	defer h.mu.Unlock()
	for i, l := range h.listings {
		if l.verifier == v {
			h.listings = append(h.listings[:i], h.listings[i+1:]...)
			break
		}
	}
	if len(h.listings) == maxListings {
		h.listings = append(h.listings[:0], h.listings[1:]...)
	}
	h.listings = append(h.listings, listing{path, v, contents})
	return v
}

// DataForVerifier returns a listing with the present attributes of its entries. Entries
// that were removed stay in the listing with their last attributes.
func (h *handler) DataForVerifier(path string, verifier uint64) []fs.FileInfo {
	h.mu.Lock()
	var kept []fs.FileInfo
	for _, l := range h.listings {
		if l.verifier == verifier && l.path == path {
			kept = l.entries
		}
	}
	h.mu.Unlock()
	if kept == nil {
		return nil
	}
	h.fs.mu.RLock()
	defer h.fs.mu.RUnlock()
	dir, err := h.fs.lookup(path)
	if err != nil {
		return nil
	}
	now := make([]fs.FileInfo, len(kept))
	for i, e := range kept {
		now[i] = e
		if n, ok := dir.children[e.Name()]; ok {
			now[i] = n.info()
		}
	}
	return now
}
