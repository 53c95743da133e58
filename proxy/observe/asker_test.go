package observe

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A testLoop runs its tasks one after the other, and none while it hangs.
type testLoop struct {
	tasks chan loop.Task
	posts int
}

func newTestLoop(t *testing.T, hangs bool) *testLoop {
	l := &testLoop{tasks: make(chan loop.Task, 8)}
	t.Cleanup(func() { close(l.tasks) })
	if !hangs {
		go func() {
			for task := range l.tasks {
				task.Run()
			}
		}()
	}
	return l
}

func (l *testLoop) Post(t loop.Task) {
	l.posts++
	l.tasks <- t
}

// TestAsker: the answers of loops that answer are there, and a loop that hangs is waited for once.
func TestAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well, hangs := newTestLoop(t, false), newTestLoop(t, true)
		a := NewAsker([]loop.Loop{well, hangs})
		began := time.Now()
		var looked []int
		items := make([]int, askMany+1)
		for k := range items {
			items[k] = k
		}
		ask := func() (took []int) {
			looked = nil
			a.Each([][]int{items, {1000}}, func(k int) { looked = append(looked, k) }, func(k int) { took = append(took, k) })
			return took
		}
		for range 2 {
			if took := ask(); !slices.Equal(took, items) || !slices.Equal(looked, items) {
				t.Errorf("took %v, and the loop has looked at %v", took, looked)
			}
		}
		if d := time.Since(began); d != askWait {
			t.Errorf("waited for %v, want %v", d, askWait)
		}
		if well.posts != 4 || hangs.posts != 1 {
			t.Errorf("%d and %d tasks, want two for each question, and one", well.posts, hangs.posts)
		}
		if got := a.All(func(_ int, done func()) loop.Task { return loop.TaskFunc(done) }); !slices.Equal(got, []int{0}) {
			t.Errorf("loops %v have answered", got)
		}
	})
}
