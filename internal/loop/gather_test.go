package loop

import (
	"slices"
	"testing"
)

// atOnce is a loop that runs each task at once, and asleep one that runs none.
type atOnce struct{}

func (atOnce) Post(t Task) { t.Run() }

type asleep struct{}

func (asleep) Post(Task) {}

// TestGather: each loop is asked once, by its number. A loop that does not answer holds up nobody who quits.
func TestGather(t *testing.T) {
	got, ok := Gather(make([]atOnce, 3), nil, func(here int) int { return here })
	if slices.Sort(got); !ok || !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("the loops answered %v, %v", got, ok)
	}
	quit := make(chan struct{})
	close(quit)
	if got, ok := Gather(make([]asleep, 2), quit, func(here int) int { return here }); ok || got != nil {
		t.Errorf("loops that run nothing answered %v", got)
	}
}
