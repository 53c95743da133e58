package fabrictest

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

func TestLoopOrder(t *testing.T) {
	l := NewLoop()
	const posters, posts = 4, 1000
	var got [posters][]int // owned by the loop
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := range posts {
				l.Post(loop.TaskFunc(func() { got[p] = append(got[p], i) }))
			}
		})
	}
	wg.Wait()
	l.Stop()
	for p := range got {
		if len(got[p]) != posts {
			t.Errorf("poster %d: %d of %d tasks ran", p, len(got[p]), posts)
		}
		for i, n := range got[p] {
			if i != n {
				t.Fatalf("poster %d: task %d ran as number %d", p, n, i)
			}
		}
	}
	l.Post(loop.TaskFunc(func() { t.Error("a task ran after Stop") }))
	l.Stop()
}

func TestLoopPostsToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoop()
		n := 0
		var task loop.TaskFunc
		task = func() {
			if n++; n < 10 {
				l.Post(task)
			}
		}
		l.Do(task)
		synctest.Wait()
		if n != 10 {
			t.Errorf("ran %d times", n)
		}
		l.Stop()
	})
}

// Stop also runs the tasks that the last tasks post: a connection that is about to close does so.
func TestLoopStopsAtTheEnd(t *testing.T) {
	l := NewLoop()
	n := 0
	var task loop.TaskFunc
	task = func() {
		for n == 0 && !l.isStopping() {
			runtime.Gosched()
		}
		n++
		if n < 3 {
			l.Post(task)
		}
	}
	l.Post(task)
	l.Stop()
	if n != 3 {
		t.Errorf("ran %d times before the loop stopped, want 3", n)
	}
}

func (l *Loop) isStopping() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopping
}
