package explain

import "github.com/rdmabridge/rdmabridge/internal/capture"

// A summary is the last object of the output.
type summary struct {
	Kind        string        `json:"kind"` // summary
	Messages    int           `json:"messages"`
	Calls       int           `json:"calls"`
	Replies     int           `json:"replies"`
	Unanswered  int           `json:"unanswered"` // Calls without a Reply; counted only in captures
	Malformed   int           `json:"malformed"`
	Cut         int           `json:"cut"`
	Unknown     int           `json:"unknown_files,omitempty"` // Calls of which the capture does not tell whether --path and --export choose them
	Incomplete  bool          `json:"incomplete"`              // whether --max stopped the explanation
	Broken      string        `json:"broken,omitempty"`        // the error at which the capture ends
	Skipped     []skipped     `json:"skipped_packets,omitempty"`
	Connections []*connection `json:"connections,omitempty"`
	Hints       []string      `json:"hints,omitempty"`
}

// A skipped counts the packets that were skipped for one reason.
type skipped struct {
	Reason  string `json:"reason"`
	Packets int    `json:"packets"`
}

// summarise returns the summary. incomplete says that --max stopped the explanation.
func (e *explainer) summarise(in *Input, incomplete bool) *summary {
	s := &summary{
		Kind: "summary", Messages: e.count, Calls: e.callCount, Replies: e.replyCount, Malformed: e.malformed, Cut: e.cut, Unknown: e.unknown, Incomplete: incomplete,
	}
	if in.capture == nil {
		return s
	}
	if !incomplete {
		s.Unanswered = e.unanswered
		for _, k := range e.calls {
			if k.replies == 0 && !k.hidden {
				s.Unanswered++
			}
		}
	}
	if err := in.capture.Err; err != nil {
		s.Broken = err.Error()
	}
	for why, n := range in.capture.Skipped {
		if why > 0 && n > 0 {
			s.Skipped = append(s.Skipped, skipped{capture.Skip(why).String(), n})
		}
	}
	var cut, missing int64
	for _, c := range in.capture.Conns {
		s.Connections = append(s.Connections, e.connections[c])
		for i := range c.Streams {
			cut += c.Streams[i].Cut
			missing += c.Streams[i].Missing
		}
	}
	if cut > 0 {
		hint := "packets were cut short: run tcpdump with -s 0"
		if e.ours {
			hint = "data are cut: run rdmabridge capture with --payload"
		}
		s.Hints = append(s.Hints, hint)
	}
	if missing > cut {
		s.Hints = append(s.Hints, "packets are missing: run tcpdump with a larger buffer, -B 65536")
	}
	return s
}
