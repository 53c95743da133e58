package endpoints

import (
	"errors"
	"testing"
	"time"
)

var errDown = errors.New("down")

// TestEjectLastGood: an operator cannot eject the only endpoint that does not fail.
func TestEjectLastGood(t *testing.T) {
	var h Health
	h.Set([]string{"a", "b"}, false)
	h.Gone("b", errDown)
	if err := h.Eject("a", time.Time{}); !errors.Is(err, ErrLastEndpoint) {
		t.Errorf("Eject: %v, want %v", err, ErrLastEndpoint)
	}
	if err := h.Eject("b", time.Time{}); err != nil {
		t.Errorf("the one that fails: %v", err)
	}
	if _, err := h.Return("b"); err != nil {
		t.Error(err)
	}
	if err := h.Eject("a", time.Time{}); err != nil {
		t.Errorf("with b back: %v", err)
	}
}

// TestEjectOfFailing: where all endpoints fail, an operator can eject all but one.
func TestEjectOfFailing(t *testing.T) {
	var h Health
	h.Set([]string{"a", "b"}, false)
	h.Gone("a", errDown)
	h.Gone("b", errDown)
	if err := h.Eject("a", time.Time{}); err != nil {
		t.Errorf("one of two that fail: %v", err)
	}
	if err := h.Eject("b", time.Time{}); !errors.Is(err, ErrLastEndpoint) {
		t.Errorf("the other one: %v, want %v", err, ErrLastEndpoint)
	}
}
