package tap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files are where the stream of a capture is written: one file, or a ring of files. Each of them is
// whole: it begins with the header of the stream, and ends behind a message.
//
// The files of a ring are named as dumpcap names them: nfs.pcapng becomes nfs_00001_20260131235959.pcapng,
// with the number of the file and the time when it was begun, in UTC.
type Files struct {
	Name string
	Ring int   // most files that are kept; 0: one file, of any length
	Size int64 // octets after which the next file of the ring is begun

	header []byte // what each file begins with
	number int
	file   *os.File
	out    *bufio.Writer
	length int64
	inside bool     // the file ends within a message
	names  []string // of the files that are there, the oldest first
}

// Types of blocks of pcapng, and how long one of them may be.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	leastBlock     = 12
	mostBlock      = 1 << 20
)

// Copy copies blocks from r to w, and only whole ones. each is called before each block. It ends with
// the error io.ErrUnexpectedEOF where r ends within a block.
func Copy(w io.Writer, r io.Reader, each func(block []byte) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var block []byte
	for {
		head, err := in.Peek(8)
		if len(head) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unexpected(err)
		}
		n := binary.LittleEndian.Uint32(head[4:])
		if n < leastBlock || n > mostBlock || n%4 != 0 {
			return fmt.Errorf("tap: a block of %d octets", n)
		}
		if uint32(cap(block)) < n {
			block = make([]byte, n)
		}
		block = block[:n]
		if _, err := io.ReadFull(in, block); err != nil {
			return unexpected(err)
		}
		if each != nil {
			if err := each(block); err != nil {
				return err
			}
		}
		if _, err := w.Write(block); err != nil {
			return err
		}
		if f, ok := w.(interface{ Flush() error }); ok && in.Buffered() == 0 {
			if err := f.Flush(); err != nil {
				return err
			}
		}
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Copy writes the stream r to the files.
func (f *Files) Copy(r io.Reader) error {
	return Copy(f, r, func(block []byte) error {
		switch kind := binary.LittleEndian.Uint32(block); {
		case kind == blockSection || kind == blockInterface:
			f.header = append(f.header, block...)
		case f.Ring > 0 && !f.inside && f.length+int64(len(block)) > f.Size && f.length > int64(len(f.header)):
			if err := f.next(); err != nil {
				return err
			}
			_, err := f.Write(f.header)
			return err
		}
		f.inside = inside(block)
		return nil
	})
}

// inside reports whether a block is a packet within a message: the last packet of a message has the flag PSH.
func inside(block []byte) bool {
	const data = 28 // where the packet begins
	if binary.LittleEndian.Uint32(block) != blockPacket || len(block) < data+14+40+20 {
		return false
	}
	b := block[data:]
	flags := b[14+20+13]
	length := int(binary.BigEndian.Uint16(b[16:])) - 40
	if binary.BigEndian.Uint16(b[12:]) == 0x86dd {
		flags = b[14+40+13]
		length = int(binary.BigEndian.Uint16(b[18:])) - 20
	}
	return flags == 0x10 && length > 0
}

// Write writes to the file that is open, and opens the first one.
func (f *Files) Write(b []byte) (int, error) {
	if f.file == nil {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n, err := f.out.Write(b)
	f.length += int64(n)
	return n, err
}

// Flush gives what was written to the kernel.
func (f *Files) Flush() error { return f.out.Flush() }

// next begins another file, and removes the oldest of the ring.
func (f *Files) next() error {
	if err := f.Close(); err != nil {
		return err
	}
	name := f.Name
	f.number++
	if f.Ring > 0 {
		ext := filepath.Ext(name)
		name = fmt.Sprintf("%s_%05d_%s%s", strings.TrimSuffix(name, ext), f.number, time.Now().UTC().Format("20060102150405"), ext)
	}
	// Captures have names of files, users and perhaps data in them.
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f.file, f.length, f.out = file, 0, bufio.NewWriterSize(file, 64<<10)
	f.names = append(f.names, name)
	if f.Ring > 0 && len(f.names) > f.Ring {
		old := f.names[0]
		f.names = f.names[1:]
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close ends the file that is open, once it is on the disk.
func (f *Files) Close() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return errors.Join(f.out.Flush(), syncFile(file), file.Close())
}

// syncFile waits until file is on the disk, if it is a file that can be.
func syncFile(file *os.File) error {
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return file.Sync()
}

// Names are the files that are there, the oldest first.
func (f *Files) Names() []string { return f.names }
