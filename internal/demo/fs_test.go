package demo

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
)

var (
	_ billy.Filesystem = (*memFS)(nil)
	_ billy.Change     = (*memFS)(nil)
	_ billy.Capable    = (*memFS)(nil)
)

// put creates the file name with a text.
func put(t *testing.T, fs *memFS, name, text string) {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, text); err != nil {
		t.Fatal(err)
	}
}

// contents reads the file name.
func contents(t *testing.T, fs *memFS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names lists the directory dir.
func names(t *testing.T, fs *memFS, dir string) string {
	t.Helper()
	infos, err := fs.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, i := range infos {
		s = append(s, i.Name())
	}
	return strings.Join(s, " ")
}

func TestDemoFSTree(t *testing.T) {
	fs := newMemFS(time.Now)
	if err := fs.MkdirAll("/d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, fs, "a", "A")
	put(t, fs, "ab", "AB")
	put(t, fs, "/d/f", "F")
	put(t, fs, "../../escaped", "no")
	if got, want := names(t, fs, "/"), "a ab d escaped"; got != want {
		t.Errorf("root has %q, want %q", got, want)
	}
	for _, tc := range []struct {
		name string
		err  error
		want error
	}{
		{"remove full directory", fs.Remove("d"), syscall.ENOTEMPTY},
		{"remove nothing", fs.Remove("x"), os.ErrNotExist},
		{"remove root", fs.Remove("/"), syscall.EBUSY},
		{"remove below a file", fs.Remove("a/x"), syscall.ENOTDIR},
		{"rename nothing", fs.Rename("x", "y"), os.ErrNotExist},
		{"rename into itself", fs.Rename("d", "d/e/d"), syscall.EINVAL},
		{"rename root", fs.Rename("/", "d/r"), syscall.EINVAL},
		{"rename file over directory", fs.Rename("a", "d"), syscall.EISDIR},
		{"rename directory over file", fs.Rename("d", "a"), syscall.ENOTDIR},
		{"rename over full directory", fs.Rename("d/e", "d"), syscall.ENOTEMPTY},
		{"rename to itself", fs.Rename("a", "a"), nil},
		{"rename", fs.Rename("a", "d/a"), nil},
		{"rename over", fs.Rename("d/a", "escaped"), nil},
		{"rename directory", fs.Rename("d", "g"), nil},
		{"long name", fs.MkdirAll(strings.Repeat("n", 256), 0o755), syscall.ENAMETOOLONG},
		{"mkdir over file", fs.MkdirAll("ab", 0o755), syscall.ENOTDIR},
		{"symlink", fs.Symlink("/some/where", "l"), nil},
		{"symlink over", fs.Symlink("x", "ab"), os.ErrExist},
		{"chmod", fs.Chmod("g", 0o700), nil},
		{"chown", fs.Lchown("g", 7, 8), nil},
		{"chtimes", fs.Chtimes("g", time.Time{}, time.Unix(5, 6)), nil},
		{"chmod nothing", fs.Chmod("x", 0o700), os.ErrNotExist},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, tc.err, tc.want)
		}
	}
	checkTree(t, fs)
}

// checkTree checks the tree that the operations of TestDemoFSTree leave.
func checkTree(t *testing.T, fs *memFS) {
	t.Helper()
	if got, want := names(t, fs, "/"), "ab escaped g l"; got != want {
		t.Errorf("root has %q, want %q", got, want)
	}
	if got, want := names(t, fs, "g"), "e f"; got != want {
		t.Errorf("g has %q, want %q", got, want)
	}
	if got := contents(t, fs, "escaped"); got != "A" {
		t.Errorf("renamed file holds %q", got)
	}
	if got, err := fs.Readlink("l"); err != nil || got != "/some/where" {
		t.Errorf("readlink: %q, %v", got, err)
	}
	if _, err := fs.Readlink("ab"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("readlink of a file: %v", err)
	}
	if _, err := fs.Open("l"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("open of a symbolic link: %v", err)
	}
	i, err := fs.Stat("g")
	if err != nil || i.Mode() != os.ModeDir|0o700 || !i.IsDir() || !i.ModTime().Equal(time.Unix(5, 6)) {
		t.Errorf("g is %v %v, %v", i.Mode(), i.ModTime(), err)
	}
	before := i.ModTime()
	if i, _ = fs.Stat("g"); !i.ModTime().Equal(before) {
		t.Error("Stat changed the modification time")
	}
}

func TestDemoFSContents(t *testing.T) {
	fs := newMemFS(time.Now)
	f, err := fs.Create("f")
	if err != nil {
		t.Fatal(err)
	}
	at := func(off int64, p string) {
		t.Helper()
		if _, err := f.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if n, err := io.WriteString(f, p); n != len(p) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	want := make([]byte, 3*blockSize+5)
	at(3*blockSize, "tail!") // blocks 0 to 2 are a hole
	copy(want[3*blockSize:], "tail!")
	at(blockSize-2, "across") // two blocks
	copy(want[blockSize-2:], "across")
	if got := contents(t, fs, "f"); got != string(want) {
		t.Errorf("contents differ from %d octets", len(want))
	}
	if fs.used != 3*blockSize {
		t.Errorf("%d octets used, want 3 blocks", fs.used)
	}
	if n, err := f.ReadAt(make([]byte, 10), int64(len(want))-3); n != 3 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if n, err := f.ReadAt(make([]byte, 10), int64(len(want))); n != 0 || err != io.EOF {
		t.Errorf("read behind the end: %d, %v", n, err)
	}
	// The octets that a truncation cuts off read as zeros when the file grows again.
	for _, size := range []int64{blockSize + 1, 4 * blockSize} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
	}
	clear(want[blockSize+1:])
	want = append(want, make([]byte, 4*blockSize-len(want))...)
	if got := contents(t, fs, "f"); !bytes.Equal([]byte(got), want) {
		t.Error("contents differ after truncation")
	}
	checkFileLimits(t, fs, f)
}

// checkFileLimits writes behind the largest size, and to f, the file "f", after its
// removal.
func checkFileLimits(t *testing.T, fs *memFS, f billy.File) {
	t.Helper()
	if err := f.Truncate(maxFileSize + 1); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("truncate beyond the limit: %v", err)
	}
	if _, err := f.Seek(maxFileSize, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte{1}); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("write beyond the limit: %v", err)
	}
	if err := fs.Remove("f"); err != nil || fs.used != 0 {
		t.Errorf("remove: %v, %d octets used", err, fs.used)
	}
	if _, err := f.Write([]byte{1}); !errors.Is(err, syscall.EFBIG) && !errors.Is(err, syscall.ESTALE) || fs.used != 0 {
		t.Errorf("write to a removed file: %v, %d octets used", err, fs.used)
	}
}

func TestDemoFSExclusive(t *testing.T) {
	fs := newMemFS(time.Now)
	if _, err := fs.OpenFile("g", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		t.Error(err)
	}
	if _, err := fs.OpenFile("g", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, os.ErrExist) {
		t.Errorf("exclusive open: %v", err)
	}
	if _, err := fs.OpenFile("g", os.O_WRONLY|os.O_EXCL, 0); err != nil {
		t.Errorf("O_EXCL without O_CREATE: %v", err)
	}
}

func TestDemoFSFull(t *testing.T) {
	fs := newMemFS(time.Now)
	fs.used = capacity - blockSize
	f, err := fs.Create("f")
	if err != nil {
		t.Fatal(err)
	}
	n, err := f.Write(make([]byte, 2*blockSize))
	if n != blockSize || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write: %d, %v; want one block, then no space", n, err)
	}
}

// TestDemoFSConcurrent uses one tree from several goroutines, as connections do.
func TestDemoFSConcurrent(t *testing.T) {
	fs := newMemFS(time.Now)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 200 {
				f, err := fs.Create(name)
				if err != nil {
					t.Error(err)
					return
				}
				f.Write([]byte(name))
				fs.ReadDir("/")
				f.ReadAt(make([]byte, 4), 0)
				fs.Rename(name, name+"2")
				fs.Remove(name + "2")
			}
		}()
	}
	wg.Wait()
	if len(fs.nodes) != 1 || fs.used != 0 {
		t.Errorf("%d nodes, %d octets left", len(fs.nodes), fs.used)
	}
}

func TestDemoHandles(t *testing.T) {
	fs := newMemFS(time.Now)
	h := newHandler(fs)
	put(t, fs, "a", "A")
	handle := h.ToHandle(fs, []string{"a"})
	if err := fs.MkdirAll("d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := fs.Rename("a", "d/b"); err != nil {
		t.Fatal(err)
	}
	if _, path, err := h.FromHandle(handle); err != nil || strings.Join(path, "/") != "d/b" {
		t.Errorf("handle leads to %v, %v after a rename", path, err)
	}
	if err := fs.Remove("d/b"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, handle, handle[:15], make([]byte, 16), newHandler(fs).ToHandle(fs, nil)} {
		if _, _, err := h.FromHandle(bad); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("handle %x: %v, want stale", bad, err)
		}
	}
	if _, path, err := h.FromHandle(h.ToHandle(fs, nil)); err != nil || len(path) != 0 {
		t.Errorf("the root's handle leads to %v, %v", path, err)
	}
}
