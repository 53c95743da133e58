//go:build !otel

package main

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// tracingError says why this build cannot send traces.
func tracingError() error {
	return errors.New("this build cannot send traces: it was made without the build tag otel (make build-otel)")
}

func startTracer(*configs.Tracing, zerolog.Logger, *metrics.Registry) (tracer, error) {
	return nil, tracingError()
}
