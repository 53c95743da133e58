//go:build otel

package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/tracing"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// tracingError says why this build cannot send traces: it can.
func tracingError() error { return nil }

// startTracer begins to send traces.
func startTracer(c *configs.Tracing, log zerolog.Logger, m *metrics.Registry) (tracer, error) {
	t, err := tracing.Start(tracing.Options{
		Endpoint: c.Endpoint, Sample: float64(c.Sample), Slower: c.Slower.Value(), Log: log,
		Service: tracing.Service{Version: buildInfo().Version, Instance: instance()},
		Sent:    m.Counter(metrics.TraceCalls), Dropped: m.Counter(metrics.TraceDroppedCalls),
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// instance names this process among all bridges.
func instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}
