package proxy_test

import (
	"testing"
	"time"

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
	stop, answer := make(chan struct{}), make(chan bool)
	go func() { answer <- p.LoopsAnswer(stop) }()
	select {
	case <-answer:
		t.Error("the loops answer, and one hangs")
	case <-time.After(50 * time.Millisecond):
	}
	close(stop)
	if <-answer {
		t.Error("stopped, and the loops answer")
	}
	close(release)
	if !p.LoopsAnswer(nil) {
		t.Error("the loop goes on and does not answer")
	}
}
