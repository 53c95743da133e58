package audit

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Lines are JSON. Whatever clients have named a file is escaped, so that a name cannot end a line, or be taken for
// another member. A text that is not UTF-8 has a second member with its octets, because JSON cannot hold them.

// handleEnd is how many octets of a handle are shown, from its end.
const handleEnd = 12

// begin begins a line.
func begin(b []byte, at time.Time, event string) []byte {
	b = append(b, `{"time":"`...)
	b = at.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	return text(append(b, '"'), "event", event)
}

// text appends a member.
func text(b []byte, key, value string) []byte {
	b = append(b, `,"`...)
	b = append(append(b, key...), `":`...)
	if plain(value) {
		return append(append(append(b, '"'), value...), '"')
	}
	quoted, _ := json.Marshal(value) // a string has no error
	b = append(b, quoted...)
	if !utf8.ValidString(value) {
		b = text(b, key+"_hex", hex.EncodeToString([]byte(value)))
	}
	return b
}

// plain reports whether value is a JSON string as it is.
func plain(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// number appends a member.
func number(b []byte, key string, value uint64) []byte {
	b = append(b, `,"`...)
	b = append(b, key...)
	return strconv.AppendUint(append(b, `":`...), value, 10)
}

// optional appends a member unless it is empty.
func optional(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return text(b, key, value)
}

func end(b []byte) []byte { return append(b, "}\n"...) }

// line appends the line of an operation of e.
func (e *ended) line(b []byte, kind string, o *operation) []byte {
	b = begin(b, e.at, kind)
	b = text(b, "client", addressOf(e.client))
	b = optional(b, "identity", e.identity)
	b = text(b, "flavor", e.flavor)
	if e.hasIDs {
		b = number(number(b, "uid", uint64(e.uid)), "gid", uint64(e.gid))
	}
	b = text(b, "listener", e.listener)
	program := "nfs"
	if e.program == oncrpc.ProgramNFSACL {
		program = "nfsacl"
	}
	b = number(text(b, "program", program), "version", uint64(e.version))
	b = text(b, "operation", o.name)
	b = o.at.append(b, "", e.choice.Hide)
	b = o.to.append(b, "to_", e.choice.Hide)
	b = optional(b, "target", e.choice.Hide.Path(o.target))
	b = optional(b, "attribute", o.attribute)
	if o.hasOctets {
		b = number(b, "octets", o.octets)
	}
	b = text(b, "result", e.result(o, e.sent))
	if e.fate != "replied" {
		b = text(b, "call", e.fate)
	}
	return end(b)
}

// in reports whether o may be about a file below one of exports.
func (o *operation) in(exports []string) bool {
	return len(exports) == 0 || !o.at.outside(exports) || o.to != (place{}) && !o.to.outside(exports)
}

// outside reports whether p is known to be below none of exports. A path that begins with "..." is not known.
func (p *place) outside(exports []string) bool {
	if p.base == "" && !p.rooted {
		return false
	}
	full := path(p.base, p.below, p.name)
	return strings.HasPrefix(full, "/") && !slices.ContainsFunc(exports, func(e string) bool {
		return full == e || strings.HasPrefix(full, strings.TrimSuffix(e, "/")+"/")
	})
}

// append appends what is known of p, with a prefix before each key: its path, or else a handle and the names behind it.
func (p *place) append(b []byte, prefix string, hide names.Hidden) []byte {
	switch {
	case p.rooted:
		return text(b, prefix+"path", hide.Path(path("", p.below, p.name)))
	case p.base != "":
		return text(b, prefix+"path", hide.Path(path(p.base, p.below, p.name)))
	case p.handle == "" && !p.named:
		return b
	case p.handle != "":
		b = text(b, prefix+"handle", hex.EncodeToString([]byte(p.handle[max(0, len(p.handle)-handleEnd):])))
		b = optional(b, prefix+"below", hide.Path(p.below))
	}
	if p.named {
		b = text(b, prefix+"name", hide.Path(p.name))
	}
	return b
}

// missingLine appends the line that says that lines are missing before it.
func missingLine(b []byte, at time.Time, lines uint64) []byte {
	b = begin(b, at, "missing")
	b = number(b, "lines", lines)
	return end(text(b, "message", strconv.FormatUint(lines, 10)+" lines missing"))
}

// opaqueLine appends the line that says how many Calls of a client could not be read.
func opaqueLine(b []byte, at time.Time, client netip.Addr, calls uint64) []byte {
	return end(number(text(begin(b, at, "opaque"), "client", addressOf(client)), "calls", calls))
}

// addressOf is the text of a client's address; "others" stands for those that were too many.
func addressOf(a netip.Addr) string {
	if !a.IsValid() {
		return "others"
	}
	return a.String()
}
