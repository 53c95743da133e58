package status

import "time"

// Names says which exports and files are used most, and by which clients. The control socket alone serves it, unless
// names.page is on, because names are data.
type Names struct {
	Since  time.Time `json:"since"`  // what is counted began then
	Time   time.Time `json:"time"`   // when this was written
	Sample float64   `json:"sample"` // the part of the Calls that was looked at
	Known  int       `json:"known"`  // handles whose names are known
	Used   int       `json:"used"`   // bytes of memory for them
	Missed uint64    `json:"missed"` // Calls that were not looked at, so far: they came too fast
	Opaque uint64    `json:"opaque"` // Calls that were encrypted by Kerberos, so far

	Exports []Hot `json:"exports"` // the most Calls first
	Files   []Hot `json:"files"`
	Clients []Hot `json:"clients"` // of exports
}

// A Hot is a file, an export, or a client of an export, with what was counted since Names.Since.
type Hot struct {
	Listener string  `json:"listener"`
	Export   string  `json:"export"`            // its path; "fsid 0x..." if that is not known, or "unknown"
	Path     string  `json:"path,omitempty"`    // of a file; it begins with "..." if the directories above are not known, and with "handle" if nothing is
	Removed  bool    `json:"removed,omitempty"` // the file was removed
	Client   string  `json:"client,omitempty"`
	Calls    float64 `json:"calls"`
	Error    float64 `json:"error"` // by how much Calls may be wrong; the other numbers by the same part
	Read     float64 `json:"read"`  // bytes
	Written  float64 `json:"written"`
	Mean     float64 `json:"mean"` // seconds of a Call, from reading it to its Reply
}
