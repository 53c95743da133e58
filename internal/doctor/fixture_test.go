package doctor

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A fixture is a recorded host, which a test may change.
//
// Recordings are made by TestRecord: rxe0.txt and siw0.txt by Debian's kernel 6.1 in the guest of
// deploy/lab, with knfsd on RDMA; rxe0.txt in a cgroup with limits. A line "== NAME" begins the
// contents of a file, and "== NAME -> TARGET" is a symbolic link. NAME is also netlink and a
// request, or uverbs, a file and a command; the contents are then the kernel's answer.
type fixture struct {
	files   map[string][]byte
	links   map[string]string
	netlink map[string][]byte // by request, in hexadecimal
	verbs   map[string][]byte // by file, command and the rest of it
	err     error             // of every command to uverbs, unless nil
}

func load(t testing.TB, name string) *fixture {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{map[string][]byte{}, map[string]string{}, map[string][]byte{}, map[string][]byte{}, nil}
	for part := range strings.SplitSeq(string(b), "== ") {
		head, body, _ := strings.Cut(part, "\n")
		kind, rest, _ := strings.Cut(head, " ")
		link, to, isLink := strings.Cut(head, " -> ")
		switch {
		case isLink:
			f.links[link] = to
		case kind == "netlink":
			f.netlink[rest] = unhex(t, body)
		case kind == "uverbs":
			f.verbs[rest] = unhex(t, body)
		case head != "":
			f.files[head] = []byte(body)
		}
	}
	return f
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// empty is a host without anything.
func empty() *fixture {
	return &fixture{map[string][]byte{}, map[string]string{}, map[string][]byte{}, map[string][]byte{}, nil}
}

// set changes the contents of a file.
func (f *fixture) set(name, text string) { f.files[name] = []byte(text) }

// replace changes a word in a file, which must have it.
func (f *fixture) replace(t *testing.T, name, before, after string) {
	t.Helper()
	if !bytes.Contains(f.files[name], []byte(before)) {
		t.Fatalf("%s does not contain %q", name, before)
	}
	f.set(name, strings.ReplaceAll(string(f.files[name]), before, after))
}

// remove removes the files and links whose names begin with prefix.
func (f *fixture) remove(t *testing.T, prefix string) {
	t.Helper()
	before := len(f.files) + len(f.links)
	maps.DeleteFunc(f.files, func(name string, _ []byte) bool { return strings.HasPrefix(name, prefix) })
	maps.DeleteFunc(f.links, func(name, _ string) bool { return strings.HasPrefix(name, prefix) })
	if len(f.files)+len(f.links) == before {
		t.Fatalf("no name begins with %s", prefix)
	}
}

// sources answer as the recorded kernel did.
func (f *fixture) sources() Sources {
	return Sources{
		Inventory: func() (*Inventory, error) {
			return takeInventory(func(request []byte) ([]byte, error) {
				answer, ok := f.netlink[hex.EncodeToString(request)]
				if !ok {
					return nil, errors.ErrUnsupported
				}
				_, err := nlMessages(answer, func(uint16, []byte) {})
				return answer, err
			})
		},
		Limits: func(file string) (*Limits, error) {
			return queryLimits(func(command uint32, rest, answer []byte) error {
				if f.err != nil || command == uverbsGetContext {
					return f.err
				}
				b, ok := f.verbs[fmt.Sprintf("%s %d %x", file, command, rest)]
				if !ok {
					return fs.ErrNotExist
				}
				copy(answer, b)
				return nil
			}, func(int) {})
		},
	}
}

// write makes the files below a directory.
func (f *fixture) write(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	make := func(name string, create func(string) error) {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), create(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		make(name, func(name string) error { return os.WriteFile(name, f.files[name[len(dir):]], 0o644) })
	}
	for name, to := range f.links {
		make(name, func(name string) error { return os.Symlink(to, name) })
	}
	return dir
}

// examine examines the host.
func (f *fixture) examine(t testing.TB) *Host {
	t.Helper()
	h, err := Examine(context.Background(), f.write(t), f.sources())
	if err != nil {
		t.Fatal(err)
	}
	return h
}
