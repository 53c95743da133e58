package observe

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Asking the loops
//
// What a loop owns, only the loop reads. So whoever wants to know it posts a task to each loop, which copies it. A task
// looks at a bounded number of things at a time, and posts itself again, so that Calls do not wait for it.

const (
	askWait = 500 * time.Millisecond // for all loops together
	askMany = 32                     // things that a loop is asked about at a time
)

// An Asker asks loops. It belongs to one goroutine, which is no loop's. A loop that has not answered in time is not
// asked again: with many questions, a loop that hangs would keep everybody waiting who wants to know why.
type Asker struct {
	loops []loop.Loop
	deaf  []bool // by the loops' index
}

// NewAsker returns an Asker of loops.
func NewAsker(loops []loop.Loop) *Asker { return &Asker{loops: loops, deaf: make([]bool, len(loops))} }

// All has each loop run the task that task returns for its index. The task calls done, once, when it has the answer.
// All returns the loops that have answered in time, in the order in which they have.
func (a *Asker) All(task func(i int, done func()) loop.Task) []int {
	all := make([]int, len(a.loops))
	for i := range all {
		all[i] = i
	}
	return a.ask(all, task)
}

// Each calls ask(k), for each k of byLoop[i], on the loop i, askMany of them at a time. Then it calls take(k) on the
// calling goroutine, unless the loop has not answered in time.
func (a *Asker) Each(byLoop [][]int, ask, take func(k int)) {
	var some []int
	for i, items := range byLoop {
		if len(items) > 0 {
			some = append(some, i)
		}
	}
	answered := a.ask(some, func(i int, done func()) loop.Task {
		rest := byLoop[i]
		var next loop.TaskFunc
		next = func() {
			n := min(len(rest), askMany)
			for _, k := range rest[:n] {
				ask(k)
			}
			if rest = rest[n:]; len(rest) > 0 {
				a.loops[i].Post(next)
				return
			}
			done()
		}
		return next
	})
	for _, i := range answered {
		for _, k := range byLoop[i] {
			take(k)
		}
	}
}

// ask does what All does, for some loops.
func (a *Asker) ask(some []int, task func(i int, done func()) loop.Task) (answered []int) {
	answers := make(chan int, len(some))
	waiting := 0
	for _, i := range some {
		if a.deaf[i] {
			continue
		}
		waiting++
		a.deaf[i] = true // until it has answered
		a.loops[i].Post(task(i, func() { answers <- i }))
	}
	late := time.NewTimer(askWait)
	defer late.Stop()
	for ; waiting > 0; waiting-- {
		select {
		case i := <-answers:
			a.deaf[i] = false
			answered = append(answered, i)
		case <-late.C:
			return answered
		}
	}
	return answered
}
