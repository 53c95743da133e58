package tcpframe

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Options that would let nothing pass, or are missing, are rejected with an error that
// names each of them.
func TestOptions(t *testing.T) {
	if err := listenBounds(ListenOptions{}).Validate(); err != nil {
		t.Errorf("the bounds of the tests: %v", err)
	}
	for _, tt := range []struct {
		name string
		o    ListenOptions
		want []string
	}{
		{"nothing", ListenOptions{}, []string{
			"ListenOptions.MaxConns is 0; a negative value means no limit", "ListenOptions.MaxConnsPerAddr is 0",
			"ConnOptions.MaxRecord is 0; it must be at least 1", "ConnOptions.MaxOutbound is 0",
			"ConnOptions.StallTimeout is 0", "ConnOptions.SendTimeout is 0",
		}},
		{"negative", ListenOptions{Conn: ConnOptions{MaxRecord: -1, MaxOutbound: -3}}, []string{
			"MaxRecord is -1", "MaxOutbound is -3",
		}},
		{"limit below the pause", ListenOptions{Conn: ConnOptions{MaxOutbound: 2000, OutboundLimit: 1999}}, []string{
			"ConnOptions.OutboundLimit is 1999; it must be at least MaxOutbound, 2000",
		}},
		{"silence that says nothing", ListenOptions{Conn: ConnOptions{SilentTimeout: time.Second}}, []string{
			"ConnOptions.SilentTimeout is 1s; it must be at least 2s",
		}},
	} {
		err := tt.o.Validate()
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v lacks %q", tt.name, err, want)
			}
		}
	}
}

// Start, Listen and Dial check their options before they do anything.
func TestOptionsAreChecked(t *testing.T) {
	if _, err := Start(EngineOptions{}); err == nil || !strings.Contains(err.Error(), "EngineOptions.Loops is 0") {
		t.Errorf("Start: %v", err)
	}
	e := startEngine(t, EngineOptions{Loops: 1})
	if _, err := e.Listen(ListenOptions{Address: "127.0.0.1:0"}, nil); err == nil || !strings.Contains(err.Error(), "MaxConns is 0") {
		t.Errorf("Listen: %v", err)
	}
	if _, err := e.Dial(context.Background(), "127.0.0.1:1", nil, DialOptions{}, newRecorder()); err == nil || !strings.Contains(err.Error(), "MaxRecord is 0") {
		t.Errorf("Dial: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Update took options without limits")
		}
	}()
	listen(t, e, ListenOptions{}, nil).Update(ListenOptions{})
}
