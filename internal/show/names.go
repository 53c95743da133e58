package show

import "github.com/rdmabridge/rdmabridge/internal/status"

// Exports is the table of exports.
func (p Pair) Exports() *Table {
	return p.hot(p.names().Exports, []Column{
		{Key: "export", Name: "EXPORT", Help: "what clients mount; fsid if its path is not known yet", Left: true, Flex: true},
	}, func(h *status.Hot) Row { return Row{text(h.Export)} })
}

// Files is the table of files.
func (p Pair) Files() *Table {
	return p.hot(p.names().Files, []Column{
		{Key: "file", Name: "FILE", Help: "its path, \"...\" for directories that are not known; the end of its handle if no name is known", Left: true, Flex: true},
		{Key: "export", Name: "EXPORT", Help: "what clients mount", Left: true, Rank: 5},
	}, func(h *status.Hot) Row {
		c := text(h.Path)
		if h.Removed {
			c.Text += " (removed)"
		}
		return Row{c.as(Dim, h.Removed), text(h.Export)}
	})
}

// ExportClients is the table of the clients of exports.
func (p Pair) ExportClients() *Table {
	return p.hot(p.names().Clients, []Column{
		{Key: "client", Name: "CLIENT", Help: "address of a host", Left: true},
		{Key: "export", Name: "EXPORT", Help: "what it mounts", Left: true, Flex: true},
	}, func(h *status.Hot) Row { return Row{text(h.Client), text(h.Export)} })
}

// names is what the document has of names.
func (p Pair) names() *status.Names {
	if p.Now.Names == nil {
		return new(status.Names)
	}
	return p.Now.Names
}

// hot is a table of what is used, which begins with columns of its own.
func (p Pair) hot(all []status.Hot, own []Column, first func(*status.Hot) Row) *Table {
	t := &Table{Sort: "calls", Columns: append(own,
		Column{Key: "listener", Name: "LISTENER", Help: "where its clients connect", Left: true, Rank: 7},
		Column{Key: "calls", Name: "CALLS/s", Help: "Calls a second, in the minutes that are shown"},
		Column{Key: "error", Name: "+-", Help: "by how much CALLS/s may be wrong, and the other numbers by the same part", Rank: 4},
		Column{Key: "read", Name: "READ/s", Help: "bytes that clients have read, a second", Rank: 1},
		Column{Key: "written", Name: "WRITTEN/s", Help: "bytes that clients have written, a second", Rank: 1},
		Column{Key: "time", Name: "TIME", Help: "mean time of a Call, from when the bridge has read it until its Reply goes to the client", Rank: 2},
	)}
	n := p.names()
	seconds := max(1, n.Time.Sub(n.Since).Seconds())
	for i := range all {
		h := &all[i]
		rate := func(v float64) float64 { return v / seconds }
		mean := number(0, "-")
		if h.Mean > 0 {
			mean = number(h.Mean, Duration(h.Mean))
		}
		t.Rows = append(t.Rows, append(first(h), text(h.Listener),
			number(rate(h.Calls), Count(rate(h.Calls))), number(rate(h.Error), Count(rate(h.Error))),
			number(rate(h.Read), Bytes(rate(h.Read))), number(rate(h.Written), Bytes(rate(h.Written))), mean))
	}
	return t
}
