package explain

import (
	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// namesMemory bounds what is kept of the names in a capture: some 600,000 files.
const namesMemory = 256 << 20

// A file is where the file of a Call is.
type file struct {
	Path   string `json:"path,omitempty"` // "" if the input does not tell
	Export string `json:"export,omitempty"`
}

func (f *file) String() string {
	switch {
	case f.Path == "":
		return "in export " + printable([]byte(f.Export))
	case f.Export == "":
		return printable([]byte(f.Path))
	}
	return printable([]byte(f.Path)) + " in export " + printable([]byte(f.Export))
}

// files are the files of Calls, by the index of the messages that the filter chooses: each Call and its Reply.
type files map[int]*file

// findFiles returns the files of the Calls in all that filter chooses, and how many Calls it cannot judge. The names come
// from the messages themselves.
func findFiles(all []capture.Message, filter *names.Filter) (found files, unknown int) {
	found = make(files)
	reader := names.NewReader(namesMemory)
	open := make(map[callKey][]int) // Calls without a Reply, in the order in which they came
	judge := func(call, reply int) {
		m := &all[call]
		x := names.Exchange{Listener: m.Stream.To.Addr().Unmap().String()} // MOUNT has another port than NFS
		x.Call, _ = m.Payload()
		if reply >= 0 {
			x.Reply, _ = all[reply].Payload()
		}
		p := reader.Read(m.Stream.From.Addr().Unmap(), x)
		switch filter.Judge(&p) {
		case names.In:
			f := &file{p.Path, p.Export}
			found[call] = f
			if reply >= 0 {
				found[reply] = f
			}
		case names.Unknown:
			unknown++
		}
	}
	for i := range all {
		m := &all[i]
		b, _ := m.Payload()
		xid, kind, ok := oncrpc.MessageType(b)
		if !ok || m.Conn == nil || m.Stream == nil {
			continue
		}
		if kind == oncrpc.TypeCall {
			key := callKey{m.Conn, m.Stream, xid}
			open[key] = append(open[key], i)
			continue
		}
		key := answered(m, xid)
		for _, call := range open[key] { // the first one, and those that repeat it
			judge(call, i)
		}
		delete(open, key)
	}
	for _, calls := range open {
		for _, call := range calls {
			judge(call, -1)
		}
	}
	return found, unknown
}
