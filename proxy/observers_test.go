package proxy

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

type anyTap struct{ observe.Tap }

type anyObserver struct{ observe.Observer }

// TestWatchers: a Tap and an Observer come and go without one another, and a loop that nobody watches says so.
func TestWatchers(t *testing.T) {
	p := &Proxy{loops: eventLoops{new(eventLoop), new(eventLoop)}}
	check := func(step string, tap, observer bool) {
		t.Helper()
		for _, l := range p.loops {
			a := &l.account
			if got := a.tap() != nil; got != tap {
				t.Errorf("%s: there is a Tap: %v", step, got)
			}
			if got := a.observed(); got != observer {
				t.Errorf("%s: there is an Observer: %v", step, got)
			}
			if got := a.watched(); got != (tap || observer) {
				t.Errorf("%s: somebody watches: %v", step, got)
			}
		}
	}
	check("at first", false, false)
	p.SetTap(anyTap{})
	check("with a Tap", true, false)
	p.SetObserver(anyObserver{})
	check("with both", true, true)
	if p.loops[0].account.tap() == p.loops[1].account.tap() {
		t.Error("two loops share what they remember for the Tap")
	}
	p.SetTap(nil)
	check("with an Observer", false, true)
	p.SetObserver(nil)
	check("in the end", false, false)
}
