package loop

// Gather asks each loop, and returns the answers in the order in which they come. ask runs on the loop with the number
// here. Gather reports false when quit is closed first.
func Gather[L interface{ Post(Task) }, T any](loops []L, quit <-chan struct{}, ask func(here int) T) (all []T, ok bool) {
	answers := make(chan T, len(loops))
	for i, on := range loops {
		on.Post(TaskFunc(func() { answers <- ask(i) }))
	}
	for range loops {
		select {
		case x := <-answers:
			all = append(all, x)
		case <-quit:
			return nil, false
		}
	}
	return all, true
}
