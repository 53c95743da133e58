package tlsconf

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
)

// maxFile bounds a file. The CAs of a Linux distribution take 220 KB.
const maxFile = 1 << 20

// A fileSet is the files of one configuration. It finds changes by their content: a few files of some
// kilobytes are read in no time, and a content is the same whichever way it has come there, by a write, a
// rename or a symbolic link that changes.
type fileSet struct {
	names  []string          // constant
	loaded [sha256.Size]byte // of the content that was loaded last, whether it was good or not
	last   [sha256.Size]byte // of the content at the last look
	fault  atomic.Value      // string: why the content that was loaded last cannot be used; "" if it is in force; any goroutine reads it
	fresh  bool              // the content was never loaded before
}

func newFileSet(names ...string) fileSet {
	var f fileSet
	for _, n := range names {
		if n != "" && !slices.Contains(f.names, n) {
			f.names = append(f.names, n)
		}
	}
	return f
}

// A content has the files of a fileSet by name.
type content map[string][]byte

// read reads all files. Its error says which of them cannot be read, and sum has that as it has a content.
func (f *fileSet) read() (c content, sum [sha256.Size]byte, err error) {
	c = make(content)
	h := sha256.New()
	for _, name := range f.names {
		b, e := readFile(name)
		if e != nil {
			err = errors.Join(err, e)
			b = []byte(e.Error())
		}
		c[name] = b
		fmt.Fprintf(h, "%d %d %s ", len(name), len(b), name)
		h.Write(b)
	}
	return c, [sha256.Size]byte(h.Sum(nil)), err
}

// look reports whether the files have to be loaded: their content is not the one that was loaded last, or
// could not be used, which time may change, as when a certificate is valid from a minute later on. The content
// was the same at the look before, because a writer may be in the middle of its work. now does
// without the second look.
func (f *fileSet) look(now bool) (c content, load bool, err error) {
	c, sum, err := f.read()
	settled := sum == f.last || now
	f.last = sum
	f.fresh = sum != f.loaded
	if !settled || !f.fresh && f.whyRefused() == "" {
		return nil, false, nil
	}
	f.loaded = sum
	return c, true, err
}

// used notes that the content of the last look is in force, or why it cannot be. It returns err unless it is the
// same as before for the same content.
func (f *fileSet) used(err error) error {
	old, fault := f.whyRefused(), ""
	if err != nil {
		fault = err.Error()
	}
	f.fault.Store(fault)
	if fault == old && !f.fresh {
		return nil
	}
	return err
}

// whyRefused returns why the files as they are now cannot be used; "" if they are in force. Any goroutine.
func (f *fileSet) whyRefused() string {
	s, _ := f.fault.Load().(string)
	return s
}

// readFile reads the file, or says what to do about it.
func readFile(name string) ([]byte, error) {
	// Without O_NONBLOCK, opening a pipe waits for somebody who writes to it.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: there is no such file; write the path of a PEM file", name)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: the user of this process (uid %d) may not read it; give the user, or a group of it, permission to read it; if the user has it, the directory is another one than when the bridge started, which hardening does not permit: start the bridge again", name, os.Geteuid())
	case err != nil:
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: this is not a regular file; write the path of a PEM file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: the file has more than %d KiB; write the path of a PEM file", name, maxFile>>10)
	}
	return b, nil
}

// exposed returns a warning if every user of the host can read the key file.
func exposed(name string) []string {
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm()&0o004 == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: every user of this host can read this private key (mode %04o); remove the permission with chmod o-r", name, info.Mode().Perm())}
}
