package proxy_test

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// TestLoopsAnswer: a loop that hangs keeps the answer back, and the answer comes once it goes on.
func TestLoopsAnswer(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	p := h.Proxy(nil, nil)
	if !p.LoopsAnswer(nil) {
		t.Error("idle loops do not answer")
	}
	hanging, release := make(chan struct{}), make(chan struct{})
	h.Engine.Loops()[1].Post(loop.TaskFunc(func() {
		close(hanging)
		<-release
	}))
	<-hanging
	for i := 0; i < 100 && !t.Failed(); i++ {
		stop, answer := make(chan struct{}), make(chan bool, 1)
		go func() { answer <- p.LoopsAnswer(stop) }()
		passed := make(chan struct{})
		h.Engine.Loops()[0].Post(loop.TaskFunc(func() { close(passed) }))
		<-passed
		select {
		case stop <- struct{}{}: // it still waits
			if <-answer {
				t.Error("stopped, and the loops answer")
			}
		case <-answer:
			t.Error("the loops answer, and one hangs")
		}
	}
	close(release)
	if !p.LoopsAnswer(nil) {
		t.Error("the loop goes on and does not answer")
	}
}
