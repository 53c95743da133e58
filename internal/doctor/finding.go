package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// A Severity says how bad a finding is.
type Severity uint8

// The severities, the worst last.
const (
	Note    Severity = iota + 1 // good to know
	Warning                     // the bridge works, with less than it could have
	Error                       // the bridge, or an upstream of it, does not work
)

var severityNames = [...]string{Note: "note", Warning: "warning", Error: "error"}

// String returns the word for s that JSON uses, too.
func (s Severity) String() string {
	if int(s) < len(severityNames) {
		return severityNames[s]
	}
	return ""
}

// MarshalJSON implements json.Marshaler.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// A Finding is one thing that the user should know.
type Finding struct {
	Code     string   `json:"code"` // one of Codes
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // a device, an endpoint, a file, a setting
	Text     string   `json:"text"`    // what is wrong
	Fix      []string `json:"fix"`     // what to type, one line each; may be empty
}

// maxFindings bounds the findings of a report.
const maxFindings = 1000

// Findings collects findings.
type Findings []Finding

// Add adds a finding. Its code must be one of Codes.
func (fs *Findings) Add(code string, s Severity, subject, text string, fix ...string) {
	if Codes[code] == "" {
		panic("BUG: doctor: no such code: " + code)
	}
	if len(*fs) >= maxFindings {
		return
	}
	if fix == nil {
		fix = []string{}
	}
	*fs = append(*fs, Finding{code, s, subject, text, fix})
}

// addf is Add with a format and without anything to type.
func (fs *Findings) addf(code string, s Severity, subject, format string, args ...any) {
	fs.Add(code, s, subject, fmt.Sprintf(format, args...))
}

// Worst is the severity of the worst finding, or 0 if there is none.
func (fs Findings) Worst() (worst Severity) {
	for i := range fs {
		worst = max(worst, fs[i].Severity)
	}
	return worst
}

// sort puts the worst findings first.
func (fs Findings) sort() {
	slices.SortStableFunc(fs, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
}
