//go:build !otel

package main

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/configs"
)

// tracingError says why this build cannot send traces.
func tracingError() error {
	return errors.New("this build cannot send traces: it was made without the build tag otel (make build-otel)")
}

func (b *bridge) startTracer(*configs.Tracing) (tracer, error) { return nil, tracingError() }
