package demo

import (
	"io"
	"syscall"

	"github.com/go-git/go-billy/v5"
	nfs "github.com/willscott/go-nfs"
)

// An openFile is an open file of a memFS. One goroutine uses it.
type openFile struct {
	fs   *memFS
	node *node
	name string
	pos  int64
}

func (f *openFile) Name() string { return f.name }

func (f *openFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *openFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	return f.node.readAt(p, off)
}

func (f *openFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.nodes[f.node.id] != f.node {
		return 0, syscall.ESTALE // the file was removed; nothing would free its blocks
	}
	n, err := f.fs.writeAt(f.node, p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *openFile) Seek(offset int64, whence int) (int64, error) {
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

func (f *openFile) Truncate(size int64) error {
	if size < 0 || size > maxFileSize {
		return &nfs.NFSStatusError{NFSStatus: nfs.NFSStatusFBig, WrappedErr: syscall.EFBIG}
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.truncate(f.node, size)
	return nil
}

func (f *openFile) Close() error { return nil }

func (f *openFile) Lock() error { return billy.ErrNotSupported }

func (f *openFile) Unlock() error { return billy.ErrNotSupported }

// writeAt writes p to the regular file n and allocates blocks. The caller holds mu.
func (fs *memFS) writeAt(n *node, p []byte, off int64) (int, error) {
	if off < 0 || off > maxFileSize-int64(len(p)) {
		return 0, syscall.EFBIG
	}
	done := 0
	for done < len(p) {
		number, in := off/blockSize, off%blockSize
		b := n.blocks[number]
		if b == nil {
			if fs.used+blockSize > capacity {
				break
			}
			b = make([]byte, blockSize)
			n.blocks[number] = b
			fs.used += blockSize
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

// readAt reads from the regular file n. Blocks never written read as zeros. The caller
// holds mu for reading.
func (n *node) readAt(p []byte, off int64) (int, error) {
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
		number, in := off/blockSize, off%blockSize
		part := p[done:min(len(p), done+int(blockSize-in))]
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

// truncate sets the size of the regular file n. If the file grows again, the new octets
// read as zeros. The caller holds mu.
func (fs *memFS) truncate(n *node, size int64) {
	for number, b := range n.blocks {
		switch begin := number * blockSize; {
		case begin >= size:
			delete(n.blocks, number)
			fs.used -= blockSize
		case begin+blockSize > size:
			clear(b[size-begin:])
		}
	}
	n.size = size
	n.mtime = fs.now()
}
