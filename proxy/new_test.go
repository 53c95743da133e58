package proxy_test

import (
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestUpstreamNamedTwice: New refuses two upstreams of one name, of which nobody could tell which one a listener means.
func TestUpstreamNamedTwice(t *testing.T) {
	h := proxytest.NewHarness(t, 64<<20)
	u := settings.UpstreamOptions{Name: "storage", Endpoints: []string{"127.0.0.1:1"}}
	_, err := proxy.New(proxy.Options{
		Log: h.Log, Metrics: h.Metrics, Engine: h.Engine, Arena: h.Arena, Registry: h.Registry,
		Listeners: proxytest.Listeners(settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}),
		Upstreams: proxytest.Upstreams(u, u),
	})
	if err == nil || !strings.Contains(err.Error(), `upstream "storage" named twice`) {
		t.Errorf("New returns %v", err)
	}
}
