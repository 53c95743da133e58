// Package tracing sends spans of Calls to an OpenTelemetry collector, with OTLP over HTTP. It has no code
// without the build tag otel: the libraries that it needs make the binary much larger.
//
// # Operation
//
// A Tracer is a observe.Observer. On the event loop it draws a sample with a few comparisons, and copies
// the record of a chosen Call into a queue. One goroutine makes spans of the records and gives them to
// the exporter of the SDK, a batch at a time. While the collector is slow, the queue fills, and further
// Calls are dropped and counted: clients never wait for the collector.
//
// # Spans
//
// A Call is a trace of its own, because ONC RPC carries no context. Its span has a child for each phase
// of its time: admission, credit, server and client. docs/tracing.md has a table of the attributes.
package tracing
