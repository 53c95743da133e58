package main

import (
	"crypto/sha256"
	"io"
	"os"
	"syscall"
	"time"
)

// A watcher notices that a file has another content. It looks at where the path leads
// every now and then: a look is one stat(2), and it does not matter to it whether the
// file was written to, replaced by rename as editors do, or whether a link on the way
// leads elsewhere since, as with Kubernetes' ConfigMaps, nor that there is none for a
// moment. Watches of the kernel see the first of these and lose the others, or need as
// many as there are links, and network file systems have none.
type watcher struct {
	path string
	seen stamp // what was reported, or there at the start
	last stamp // of the last look
}

// newWatcher watches the file at path from now on.
func newWatcher(path string) *watcher {
	s := stampOf(path)
	return &watcher{path: path, seen: s, last: s}
}

// look reports that the file is another one than was reported last. It has to be the
// same for two looks: who writes it may not be done.
func (w *watcher) look() bool {
	s := stampOf(w.path)
	steady := s == w.last
	w.last = s
	if !steady || s == w.seen || s == (stamp{}) {
		return false
	}
	w.seen = s
	return true
}

// watch looks at the file of w until stop is closed, and says in changed, which is one
// deep, that it has changed. every is asked after each look; none, which is negative,
// is asked again after a second.
func (w *watcher) watch(every func() time.Duration, changed chan<- struct{}, stop <-chan struct{}) {
	for {
		d := every()
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

// A stamp tells versions of a file apart without reading it. The zero stamp is that of
// no file.
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

// maxHashed is more than a file may be long.
const maxHashed = 2 << 20

// hashFile tells one content of a file from another. A file that cannot be read is
// like no other.
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
