package demo

import (
	"io"
	"syscall"

	"github.com/go-git/go-billy/v5"
	nfs "github.com/willscott/go-nfs"
)

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

func (f *demoFile) Close() error { return nil }

func (f *demoFile) Lock() error { return billy.ErrNotSupported }

func (f *demoFile) Unlock() error { return billy.ErrNotSupported }

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
