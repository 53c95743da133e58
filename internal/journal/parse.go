package journal

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Bounds of one event.
const (
	maxLine   = 64 << 10 // a longer line is not parsed
	maxFields = 24
	maxText   = 512
	maxValue  = 512
	maxKey    = 64
)

// timeFormat is zerolog's TimeFieldFormat in this process; it is one of RFC 3339.
const timeFormat = time.RFC3339Nano

// parse makes an entry of a line.
func parse(line []byte) (e entry, ok bool) {
	if len(line) > maxLine {
		return e, false
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal(line, &raw) != nil {
		return e, false
	}
	e.Fields = make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		value := text(raw[key])
		switch key {
		case "time":
			e.Time, _ = time.Parse(timeFormat, value)
		case "level":
			e.Level = cut(value, maxKey)
		case "message":
			e.Text = cut(value, maxText)
		case "event":
			e.Event.Event = cut(value, maxKey)
		case "suppressed":
			e.Repeated, _ = strconv.ParseUint(value, 10, 64)
		default:
			if len(e.Fields) < maxFields {
				e.Fields[cut(key, maxKey)] = cut(value, maxValue)
			}
		}
	}
	e.subject = subject(&e.Event)
	return e, true
}

// text returns a JSON value as a person reads it.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// cut shortens s to n octets of whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "�")
	}
	const dots = "..."
	return strings.ToValidUTF8(s[:n-len(dots)], "") + dots
}

// subjects are the keys that tell two events of one kind apart. All other keys have numbers and
// errors that differ each time.
var subjects = []string{"upstream", "listener", "endpoint", "address", "reason", "setting", "device", "file", "operation"}

// subject returns what two lines that say the same have in common. Of the peer it is the host: a
// client that connects again has another port.
func subject(e *status.Event) string {
	var b strings.Builder
	b.WriteString(e.Event)
	b.WriteByte(0)
	b.WriteString(e.Text)
	for _, key := range subjects {
		b.WriteByte(0)
		b.WriteString(e.Fields[key])
	}
	b.WriteByte(0)
	if peer, err := netip.ParseAddrPort(e.Fields["peer"]); err == nil {
		b.WriteString(peer.Addr().String())
	} else {
		b.WriteString(e.Fields["peer"])
	}
	return b.String()
}
