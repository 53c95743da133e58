package rdmaside

import "github.com/rdmabridge/rdmabridge/metrics"

// RequesterMetrics count what Requesters of one upstream do. A nil
// *RequesterMetrics counts nothing.
type RequesterMetrics struct{}

// NewRequesterMetrics makes the series of one upstream.
func NewRequesterMetrics(reg *metrics.Registry, upstream string) *RequesterMetrics {
	return &RequesterMetrics{}
}

// ResponderMetrics count what the connections of one listener do. A nil
// *ResponderMetrics counts nothing.
type ResponderMetrics struct{}

// NewResponderMetrics makes the series of one listener.
func NewResponderMetrics(reg *metrics.Registry, listener string) *ResponderMetrics {
	return &ResponderMetrics{}
}
