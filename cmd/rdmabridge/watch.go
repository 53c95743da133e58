package main

import (
	"crypto/sha256"
	"io"
	"os"
	"syscall"
	"time"
)

// A watcher notices that the content of a file has changed. It calls stat(2) on the path
// now and then. This notices a write, a rename over the file as editors do it, and a
// symbolic link on the path that changes, as with ConfigMaps of Kubernetes; and it works
// if the file is missing for a moment. inotify(7) notices only the first reliably,
// needs a watch for each link, and does not work on network file systems.
type watcher struct {
	path     string
	reported stamp // stamp of the version that was reported last, or of the version at the start
	last     stamp // of the last look
}

// newWatcher returns a watcher that reports changes after this call.
func newWatcher(path string) *watcher {
	s := stampOf(path)
	return &watcher{path: path, reported: s, last: s}
}

// watch looks at the file until stop is closed. It sends to changed, a channel with a
// buffer of one, when the file has changed. It calls interval before each look. While
// interval returns 0 or less there is no look, and watch asks again after a second.
func (w *watcher) watch(interval func() time.Duration, changed chan<- struct{}, stop <-chan struct{}) {
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
		if d <= 0 || !w.look() {
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// look reports whether the file differs from the version reported last. Two looks have
// to find the same version: a writer may be in the middle of its work at the first.
func (w *watcher) look() bool {
	s := stampOf(w.path)
	unchanged := s == w.last
	w.last = s
	if !unchanged || s == w.reported || s == (stamp{}) {
		return false
	}
	w.reported = s
	return true
}

// A stamp tells versions of a file apart without reading the file. The zero stamp means
// that there is no file.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64
}

func stampOf(path string) stamp {
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

// hashFile returns the hash of a file's content, or zeros if the file cannot be read.
func hashFile(path string) [sha256.Size]byte {
	f, err := os.Open(path)
	if err != nil {
		return [sha256.Size]byte{}
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxHashed)); err != nil {
		return [sha256.Size]byte{}
	}
	return [sha256.Size]byte(h.Sum(nil))
}
