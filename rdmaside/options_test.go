package rdmaside

import (
	"cmp"
	"strings"
	"testing"
	"time"
)

func TestRequesterOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      RequesterOptions
		fields []string
	}{
		{
			"out of range",
			RequesterOptions{Credits: -1, CallInline: 1000, ReplyInline: 1 << 20, ReceiveSize: 5},
			[]string{"Credits", "CallInline", "ReplyInline", "ReceiveSize", "Memory", "Registry", "Deadline"},
		},
		{"zero", RequesterOptions{}, []string{"Credits", "CallInline", "ReplyInline", "Memory", "Registry", "Deadline"}},
	} {
		_, err := tt.o.validated()
		for _, field := range tt.fields {
			if err == nil || !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%s: no word about %s in: %v", tt.name, field, err)
			}
		}
	}
}

func TestResponderOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      ResponderOptions
		fields []string
	}{
		{
			"out of range",
			ResponderOptions{Credits: -1, CallInline: 1000, ReplyInline: 1 << 20, MaxCall: 5, ORD: -1},
			[]string{"Credits", "CallInline", "ReplyInline", "MaxCall", "ORD", "Memory", "Registry"},
		},
		{"zero", ResponderOptions{}, []string{"Credits", "CallInline", "ReplyInline", "MaxCall", "Memory", "Registry"}},
	} {
		_, err := tt.o.validated()
		for _, field := range tt.fields {
			if err == nil || !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%s: no word about %s in: %v", tt.name, field, err)
			}
		}
	}
}

// requesterOptions returns o with values for the settings that it leaves open.
func requesterOptions(o RequesterOptions) RequesterOptions {
	o.Credits = cmp.Or(o.Credits, 128)
	o.CallInline = cmp.Or(o.CallInline, 4096)
	o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
	o.Deadline = cmp.Or(o.Deadline, 60*time.Second)
	return o
}

// responderOptions returns o with values for the settings that it leaves open.
func responderOptions(o ResponderOptions) ResponderOptions {
	o.Credits = cmp.Or(o.Credits, 64)
	o.CallInline = cmp.Or(o.CallInline, 4096)
	o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
	o.MaxCall = cmp.Or(o.MaxCall, 4<<20+64<<10)
	return o
}
