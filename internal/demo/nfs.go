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

// A demoNFS is what go-nfs asks about a demoFS: mounts, file handles, listings.
//
// A file handle is 8 octets that differ from one run to the next, then the id of
// the node. It survives renames, as NFS wants it to, and is stale once the node
// is removed. go-nfs's own caching handler names paths instead, and walks all
// handles there are on every Call.
type demoNFS struct {
	fs  *demoFS
	run uint64

	mu       sync.Mutex // guards listings; a leaf
	listings []demoListing
}

// A demoListing is a directory that a client reads a page at a time. Cookies are
// indices of it, so it must stay as it was while entries come and go.
type demoListing struct {
	path     string
	verifier uint64
	entries  []fs.FileInfo
}

// maxDemoListings bounds the directories being read at once; a client whose
// listing was dropped meanwhile, and changed too, must start again.
const maxDemoListings = 64

func newDemoNFS(fs *demoFS) *demoNFS {
	var run [8]byte
	rand.Read(run[:]) // never fails
	return &demoNFS{fs: fs, run: binary.BigEndian.Uint64(run[:])}
}

// A demoMount is the directory that a client mounts, only to get from Mount to
// ToHandle.
type demoMount struct {
	*demoFS
	dir string
}

// Mount gives any directory to anybody.
func (h *demoNFS) Mount(_ context.Context, _ net.Conn, r nfs.MountRequest) (nfs.MountStatus, billy.Filesystem, []nfs.AuthFlavor) {
	dir := h.fs.Join(string(r.Dirpath))
	switch info, err := h.fs.Lstat(dir); {
	case err != nil:
		return nfs.MountStatusErrNoEnt, h.fs, nil
	case !info.IsDir():
		return nfs.MountStatusErrNotDir, h.fs, nil
	}
	return nfs.MountStatusOk, &demoMount{h.fs, dir}, []nfs.AuthFlavor{nfs.AuthFlavorUnix, nfs.AuthFlavorNull}
}

// Change is how attributes are set.
func (h *demoNFS) Change(billy.Filesystem) billy.Change { return h.fs }

// FSStat is df.
func (h *demoNFS) FSStat(_ context.Context, _ billy.Filesystem, s *nfs.FSStat) error {
	h.fs.mu.RLock()
	defer h.fs.mu.RUnlock()
	s.TotalSize = demoCapacity
	s.FreeSize = uint64(demoCapacity - h.fs.used)
	s.AvailableSize = s.FreeSize
	s.TotalFiles = demoMaxNodes
	s.FreeFiles = uint64(demoMaxNodes - len(h.fs.nodes))
	s.AvailableFiles = s.FreeFiles
	return nil
}

// ToHandle is the handle of the node at path; a stale one if there is none.
func (h *demoNFS) ToHandle(fs billy.Filesystem, path []string) []byte {
	name := h.fs.Join(path...)
	if m, ok := fs.(*demoMount); ok {
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

// FromHandle is the path of a handle's node.
func (h *demoNFS) FromHandle(handle []byte) (billy.Filesystem, []string, error) {
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

// InvalidateHandle has nothing to do: a removed node's handle is stale already.
func (h *demoNFS) InvalidateHandle(billy.Filesystem, []byte) error { return nil }

// HandleLimit is the number of handles that stay valid: all.
func (h *demoNFS) HandleLimit() int { return demoMaxNodes }

// VerifierFor keeps a listing for the pages that follow. The verifier is the same
// for as long as no name enters or leaves the directory.
func (h *demoNFS) VerifierFor(path string, contents []fs.FileInfo) uint64 {
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
	if len(h.listings) == maxDemoListings {
		h.listings = append(h.listings[:0], h.listings[1:]...)
	}
	h.listings = append(h.listings, demoListing{path, v, contents})
	return v
}

// DataForVerifier is the listing with its attributes as they are now; names that
// are gone keep their place.
func (h *demoNFS) DataForVerifier(path string, verifier uint64) []fs.FileInfo {
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
