package journal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func line(t *testing.T, fields map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func TestAdd(t *testing.T) {
	j := New()
	j.Add([]byte(`{"level":"warn","time":"2026-01-02T03:04:05.678Z","event":"endpoint_ejected","upstream":"nfs","wait_ms":1000,"suppressed":3,"alone":false,"message":"endpoint ejected"}` + "\n"))
	events := j.Events()
	if len(events) != 1 {
		t.Fatalf("%d events, want 1", len(events))
	}
	e := events[0]
	if !e.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)) || e.Level != "warn" || e.Event != "endpoint_ejected" || e.Text != "endpoint ejected" || e.Repeated != 3 {
		t.Errorf("event %+v", e)
	}
	if want := map[string]string{"upstream": "nfs", "wait_ms": "1000", "alone": "false"}; fmt.Sprint(e.Fields) != fmt.Sprint(want) {
		t.Errorf("fields %v, want %v", e.Fields, want)
	}
}

// Lines that say the same are one event, with the time of the last.
func TestRepeated(t *testing.T) {
	j := New()
	for i := range 5 {
		j.Add(line(t, map[string]any{"level": "warn", "event": "client_refused", "listener": "nfs", "message": "connection refused", "peer": fmt.Sprintf("192.0.2.1:%d", 1000+i), "suppressed": 2}))
		if i == 2 {
			j.Add(line(t, map[string]any{"level": "info", "event": "reload_applied", "message": "reloaded"}))
		}
	}
	j.Add(line(t, map[string]any{"level": "warn", "event": "client_refused", "listener": "nfs", "message": "connection refused", "peer": "192.0.2.2:1000"}))
	events := j.Events()
	if len(events) != 3 || events[0].Fields["peer"] != "192.0.2.2:1000" || events[2].Event != "reload_applied" {
		t.Fatalf("events %+v", events)
	}
	if e := events[1]; e.Repeated != 4+5*2 || e.Fields["peer"] != "192.0.2.1:1004" {
		t.Errorf("event %+v, want 14 repeated and the last peer", e)
	}
}

// A kind of line with many different ones does not drive out the others.
func TestFull(t *testing.T) {
	j := New()
	j.Add(line(t, map[string]any{"level": "info", "event": "reload_applied", "message": "reloaded"}))
	for i := range 10 * Size {
		j.Add(line(t, map[string]any{"level": "warn", "event": "client_refused", "message": "connection refused", "peer": fmt.Sprintf("10.0.%d.%d:999", i>>8, i&255)}))
	}
	events := j.Events()
	if len(events) != Size {
		t.Fatalf("%d events, want %d", len(events), Size)
	}
	if e := events[Size-1]; e.Event != "reload_applied" {
		t.Errorf("the oldest event is %q, want the reload", e.Event)
	}
	if e := events[0]; e.Fields["peer"] != "10.0.9.255:999" {
		t.Errorf("the newest event is of %s", e.Fields["peer"])
	}
}

func TestBounds(t *testing.T) {
	j := New()
	fields := map[string]any{"message": strings.Repeat("é", 4000), "error": strings.Repeat("x", 4000), "list": []int{1, 2}}
	for i := range 100 {
		fields[fmt.Sprintf("key%s%d", strings.Repeat("k", 100), i)] = i
	}
	j.Add(line(t, fields))
	for _, bad := range []string{"", "{", "[]", "null", `"x"`, "plain text\n", "{}", `{"time":1,"level":{},"message":[],"suppressed":"x"}`, `{"a":"` + strings.Repeat("x", maxLine) + `"}`} {
		j.Add([]byte(bad))
	}
	for _, e := range j.Events() {
		if len(e.Text) > maxText || len(e.Fields) > maxFields || len(e.Level) > maxKey {
			t.Errorf("text of %d octets, %d fields", len(e.Text), len(e.Fields))
		}
		for k, v := range e.Fields {
			if len(k) > maxKey || len(v) > maxValue {
				t.Errorf("field %q of %d octets", k, len(v))
			}
		}
	}
	if n := len(j.Events()); n > 4 {
		t.Errorf("%d events", n)
	}
}

func FuzzAdd(f *testing.F) {
	f.Add([]byte(`{"level":"warn","time":"2026-01-02T03:04:05.678Z","event":"x","peer":"[::1]:5","message":"m"}`))
	f.Add([]byte(`{"a":{"b":["\ud800"]},"a":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		j := New()
		j.Add(b)
		j.Add(b)
		if n := len(j.Events()); n > 1 {
			t.Errorf("the same line twice gave %d events", n)
		}
	})
}
