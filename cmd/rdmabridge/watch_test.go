package main

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// looks counts how many of n looks report a change.
func looks(w *watcher, n int) (seen int) {
	for range n {
		if w.look() {
			seen++
		}
	}
	return seen
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "bridge.yaml")
	write(t, path, "one")
	w := newWatcher(path)
	if n := looks(w, 4); n != 0 {
		t.Errorf("nothing happened and %d changes are seen", n)
	}

	write(t, path, "second") // of another length: two versions may be of one time
	if w.look() {
		t.Error("a change is reported at the first look, when it may not be whole")
	}
	write(t, path, "three")
	if w.look() {
		t.Error("a file that still changes is reported")
	}
	if n := looks(w, 4); n != 1 {
		t.Errorf("written to: seen %d times, want once", n)
	}

	// Replace the file by rename, as editors do.
	write(t, path+"~", "four")
	must(t, os.Rename(path+"~", path))
	if n := looks(w, 4); n != 1 {
		t.Errorf("renamed over: seen %d times, want once", n)
	}

	must(t, os.Remove(path))
	if w.look() {
		t.Error("a file that is gone for a moment is reported")
	}
	if n := looks(w, 4); n != 1 {
		t.Errorf("gone: seen %d times, want once", n)
	}
	write(t, path, "the fifth")
	if n := looks(w, 4); n != 1 {
		t.Errorf("back again: seen %d times, want once", n)
	}
}

// TestWatcherConfigMap: a ConfigMap is a link to a link, bridge.yaml -> ..data/bridge.yaml
// and ..data -> ..1. To change it the kubelet makes another directory and another link, and
// renames the link over ..data.
func TestWatcherConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "bridge.yaml"), text)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", "one")
	path := filepath.Join(dir, "bridge.yaml")
	must(t, os.Symlink("..data/bridge.yaml", path))
	w := newWatcher(path)
	for i, name := range []string{"..2", "..3"} {
		version(name, "two") // of one length
		must(t, os.RemoveAll(filepath.Join(dir, []string{"..1", "..2"}[i])))
		if n := looks(w, 4); n != 1 {
			t.Errorf("%s: seen %d times, want once", name, n)
		}
	}
}

// TestWatch: a change is reported at the second look that finds it. While the interval is none there are no looks.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "bridge.yaml")
		write(t, path, "one")
		const every = 5 * time.Second
		var interval atomic.Int64
		interval.Store(int64(every))
		changed, stop := make(chan struct{}, 1), make(chan struct{})
		go newWatcher(path).watch(func() time.Duration { return time.Duration(interval.Load()) }, changed, stop)
		passes := func(what string, d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if len(changed) != want {
				t.Errorf("%s: %d changes are reported, want %d", what, len(changed), want)
			}
			for range len(changed) {
				<-changed
			}
		}
		passes("nothing happened", every+time.Second, 0)
		write(t, path, "other")
		passes("seen once", every, 0)
		interval.Store(0)
		passes("seen again", every, 1)
		write(t, path, "the third")
		passes("nobody looks", time.Hour, 0)
		interval.Store(int64(every))
		passes("looks again", 2*every+time.Second, 1)
		close(stop)
	})
}
