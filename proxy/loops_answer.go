package proxy

import "github.com/rdmabridge/rdmabridge/internal/loop"

// LoopsAnswer returns true once every event loop has run a task that was posted now. It returns false when stop
// is closed first: a loop that hangs does not answer. The loops must not have been stopped.
func (p *Proxy) LoopsAnswer(stop <-chan struct{}) bool {
	answers := make(chan struct{}, len(p.loops))
	for _, on := range p.loops {
		on.Post(loop.TaskFunc(func() { answers <- struct{}{} }))
	}
	for range p.loops {
		select {
		case <-answers:
		case <-stop:
			return false
		}
	}
	return true
}
