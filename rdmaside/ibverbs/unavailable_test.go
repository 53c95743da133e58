//go:build !ibverbs

package ibverbs

import (
	"errors"
	"strings"
	"testing"
)

func TestUnavailable(t *testing.T) {
	p, err := New(Options{})
	if p != nil || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "use rdmabridge-ibverbs") {
		t.Errorf("New = %v, %v", p, err)
	}
}
