package doctor

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync/atomic"
	"syscall"
)

const (
	// maxFile is how many octets of a file a tree reads.
	maxFile = 256 << 10
	// maxEntries is how many names of a directory a tree reads.
	maxEntries = 4096
)

// A tree reads files below a directory, which is / except in tests. Names begin with a slash. Symbolic links that lead out
// of the directory count as missing files.
type tree struct {
	root *os.Root
	now  atomic.Pointer[string] // what is being read, for a reader that hangs
}

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root}, nil
}

func (t *tree) close() { _ = t.root.Close() }

// reading returns the name of the file that is being read.
func (t *tree) reading() string {
	if name := t.now.Load(); name != nil {
		return *name
	}
	return "/"
}

// open opens name, which may not be a file that waits for somebody, such as a pipe.
func (t *tree) open(name string) (*os.File, error) {
	t.now.Store(&name)
	return t.root.OpenFile("."+name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// read returns the contents of a regular file, at most maxFile octets.
func (t *tree) read(name string) ([]byte, error) {
	f, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid})
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// text returns the contents of a file as one line without white space around it, and "" if it
// cannot be read. It has printable characters only.
func (t *tree) text(name string) string {
	b, err := t.read(name)
	if err != nil {
		return ""
	}
	return printable(string(b))
}

// list returns the sorted names in a directory, at most maxEntries; none if it cannot be read.
func (t *tree) list(name string) []string {
	f, err := t.open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxEntries)
	slices.Sort(names)
	return names
}

// exists reports whether there is a file, directory or link at name.
func (t *tree) exists(name string) bool {
	_, err := t.root.Lstat("." + name)
	return err == nil
}

// linkBase returns the last element of what a symbolic link names, and "" if there is no link.
func (t *tree) linkBase(name string) string {
	to, err := t.root.Readlink("." + name)
	if err != nil || to == "" {
		return ""
	}
	return printable(path.Base(to))
}
