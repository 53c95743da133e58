package settings

import (
	"strings"
	"testing"
	"time"
)

// Package configs has the defaults, so that a setting which is missing here is an error that
// names it.
func TestOptionsHaveNoDefaults(t *testing.T) {
	l := ListenerOptions{Name: "nfs"}
	for _, want := range []string{"MaxConnections", "MaxRecord", "MaxCalls", "MaxOutbound", "StallTimeout"} {
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), `listener "nfs": `+want+" is 0") {
			t.Errorf("a TCP listener without %s: %v", want, err)
		}
	}
	l.RDMA = true
	for _, want := range []string{"has no provider", "MaxStarting", "MaxStartingPerAddress", "Credits", "CallInline", "ReplyInline"} {
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an RDMA listener without %s: %v", want, err)
		}
	}
	u := UpstreamOptions{Name: "storage", RDMA: true, Mode: ModePinned}
	for _, want := range []string{
		"has no endpoint", "has no provider", "Connections", "Credits", "Share", "SlowStart", "GSSWindow", "Pinned", "CallInline", "ReplyInline",
		"SilentTimeout", "ProbeInterval", "CallTimeout", "ConnectTimeout", "UnavailableAfter", "BackoffMin", "BackoffMax",
	} {
		if err := u.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an RDMA upstream without %s: %v", want, err)
		}
	}
	u = UpstreamOptions{
		Name: "storage", Endpoints: []string{"192.0.2.1:2049"}, Connections: 1, Mode: ModeShared, Credits: 1, Share: 100, SlowStart: 1, GSSWindow: 1,
		SilentTimeout: -1, ProbeInterval: -1,
		CallTimeout: time.Second, ConnectTimeout: time.Second, UnavailableAfter: time.Second, BackoffMin: time.Second, BackoffMax: time.Second,
	}
	if err := u.Check(); err != nil {
		t.Errorf("a complete TCP upstream: %v", err)
	}
}
