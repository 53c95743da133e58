package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
)

// A watcher notices that the content of the configuration files has changed. It calls stat(2) on their paths
// now and then. This notices a write, a rename over the file as editors do it, and a
// symbolic link on the path that changes, as with ConfigMaps of Kubernetes; and it works
// if the file is missing for a moment. inotify(7) notices only the first reliably,
// needs a watch for each link, and does not work on network file systems.
type watcher struct {
	paths    []string // of files and directories
	reported string   // stamp of the version that was reported last, or of the version at the start
	last     string   // of the last look
}

// newWatcher returns a watcher that reports changes after this call.
func newWatcher(paths ...string) *watcher {
	s := stampOf(paths)
	return &watcher{paths: paths, reported: s, last: s}
}

// watch looks at the file until stop is closed. It sends to changed, a channel with a
// buffer of one, when the file has changed. It calls interval before each look. While
// interval returns 0 or less there is no look, and watch asks again after a second.
func (w *watcher) watch(interval func() time.Duration, changed chan<- struct{}, stop <-chan struct{}) {
	repeat(interval, stop, func() {
		if !w.look() {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	})
}

// repeat calls look after each interval until stop is closed. While interval returns 0 or less it does not, and asks
// again after a second.
func repeat(interval func() time.Duration, stop <-chan struct{}, look func()) {
	for {
		d := interval()
		pause := d
		if d <= 0 {
			pause = time.Second
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		if d > 0 {
			look()
		}
	}
}

// look reports whether the file differs from the version reported last. Two looks have
// to find the same version: a writer may be in the middle of its work at the first. A file that two looks do not find is
// gone, which is a version, too.
func (w *watcher) look() bool {
	s := stampOf(w.paths)
	unchanged := s == w.last
	w.last = s
	if !unchanged || s == w.reported {
		return false
	}
	w.reported = s
	return true
}

// stampOf returns a text that tells versions of the files apart without reading them. It is "" if a file is
// missing.
func stampOf(paths []string) string {
	files, err := configs.Files(paths)
	if err != nil {
		return ""
	}
	var all strings.Builder
	for _, path := range files {
		s := stampOfFile(path)
		if s == (stamp{}) {
			return ""
		}
		fmt.Fprintf(&all, "%q %v\n", path, s)
	}
	return all.String()
}

// A stamp tells versions of a file apart. The zero stamp means that there is no file.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64
}

func stampOfFile(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	s := stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.ctime = uint64(st.Dev), st.Ino, st.Ctim.Nano()
	}
	return s
}

// maxHashed bounds how much of a file is hashed. It is more than package configs loads.
const maxHashed = 2 << 20

// hashFiles returns the hash of the names and contents of the files, or zeros if one cannot be read.
func hashFiles(paths []string) [sha256.Size]byte {
	files, err := configs.Files(paths)
	if err != nil {
		return [sha256.Size]byte{}
	}
	h := sha256.New()
	for _, path := range files {
		fmt.Fprintf(h, "%q\n", path)
		if err := hashFile(h, path); err != nil {
			return [sha256.Size]byte{}
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// hashFile adds the length and the content of a file to h.
func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(h, io.LimitReader(f, maxHashed))
	fmt.Fprintf(h, "%d\n", n)
	return err
}
