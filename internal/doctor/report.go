package doctor

import (
	"encoding/json"
	"io"
)

// A Report is everything that the doctor found. Its JSON is stable: fields are added, and neither
// renamed nor removed, while Format stays the same.
type Report struct {
	Format    int          `json:"format"` // 1
	Build     string       `json:"build"`
	Host      *Host        `json:"host"`
	Process   ProcessLimit `json:"process"`
	Endpoints []Endpoint   `json:"endpoints"`
	Worst     string       `json:"worst"` // the severity of the worst finding; "" if there is none
	Findings  Findings     `json:"findings"`
}

// ProcessLimit is what of a Process JSON has.
type ProcessLimit struct {
	User         int    `json:"user"`
	IPCLock      bool   `json:"cap_ipc_lock"`
	BindService  bool   `json:"cap_net_bind_service"`
	LockedMemory Amount `json:"locked_memory"` // the hard RLIMIT_MEMLOCK
	Descriptors  Amount `json:"descriptors"`   // the hard RLIMIT_NOFILE
	Pinned       uint64 `json:"pinned"`
}

// NewReport makes a report. It sorts the findings, the worst first.
func NewReport(build string, h *Host, endpoints []Endpoint, fs Findings) *Report {
	if endpoints == nil {
		endpoints = []Endpoint{}
	}
	if fs == nil {
		fs = Findings{}
	}
	fs.sort()
	p := &h.Process
	return &Report{
		Format: 1, Build: build, Host: h, Endpoints: endpoints, Worst: fs.Worst().String(), Findings: fs,
		Process: ProcessLimit{p.User, p.can(capIPCLock), p.can(capNetBindService), p.LockedMemory.Hard, p.Descriptors.Hard, p.Pinned},
	}
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
