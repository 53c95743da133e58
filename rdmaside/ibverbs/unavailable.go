//go:build !ibverbs

package ibverbs

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Compiled says whether the program was built with the tag ibverbs.
const Compiled = false

// New returns ErrUnavailable.
func New(Options) (fabric.Provider, error) {
	return nil, Available()
}

// Check returns ErrUnavailable.
func Check(Options, string) error { return Available() }

// Available returns why New fails.
func Available() error {
	return fmt.Errorf("%w: this program was built without the tag ibverbs; use rdmabridge-ibverbs, of the package of that name or of make build-ibverbs: docs/ibverbs.md", ErrUnavailable)
}
