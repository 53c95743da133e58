package configs

import (
	"fmt"
	"path"
	"reflect"
	"strings"
)

// Names configures what the bridge learns of the names of files and exports.
type Names struct {
	Mode    Switch   `mapstructure:"mode"`
	Memory  Size     `mapstructure:"memory"`  // for the names of file handles
	Sample  Sample   `mapstructure:"sample"`  // the part of the Calls that is looked at
	Redact  string   `mapstructure:"redact"`  // none or hash
	Page    Switch   `mapstructure:"page"`    // whether the status page shows them
	Hide    []string `mapstructure:"hide"`    // patterns of names that are never shown
	Metrics []string `mapstructure:"metrics"` // paths of the exports that have metrics
}

const (
	mostHidden        = 64 // patterns of names that are not shown
	mostMetricExports = 64 // exports that have metrics
)

// A Sample is a part of all, or 0 for one that follows the load. In a file that is auto.
type Sample float64

// String returns s as in a file.
func (s Sample) String() string {
	if s == 0 {
		return sampleAuto
	}
	return Fraction(s).String()
}

func parseSample(text string) (Sample, error) {
	if text == sampleAuto {
		return 0, nil
	}
	f, err := parseFraction(text)
	if err != nil {
		err = fmt.Errorf("%w; or auto", err)
	}
	return Sample(f), err
}

const sampleAuto = "auto"

// RedactHash is a way to show names.
const RedactHash = "hash"

// Counted returns the exports that have metrics: none if names are off.
func (n *Names) Counted() []string {
	if n.Mode != On {
		return nil
	}
	return n.Metrics
}

// shownPath requires the path of an export as the bridge shows it.
func (r *report) shownPath(at, e string) {
	if !path.IsAbs(e) || path.Clean(e) != e {
		r.addf(at, "%q is not the path of an export; write one such as /home", e)
	}
}

// LearnsAs reports whether a bridge learns the same with n as with o. The exports that have metrics, and who sees names, do not
// matter.
func (n *Names) LearnsAs(o *Names) bool {
	a, b := *n, *o
	a.Metrics, b.Metrics = nil, nil
	a.Page, b.Page = Off, Off
	return reflect.DeepEqual(a, b)
}

func (n *Names) validate(r *report) {
	r.between("names.memory", n.Memory, MiB, 4*GiB)
	r.oneOf("names.redact", n.Redact, none, RedactHash)
	if len(n.Hide) > mostHidden {
		r.addf("names.hide", "%d patterns are too many; write at most %d", len(n.Hide), mostHidden)
	}
	if len(n.Metrics) > mostMetricExports {
		r.addf("names.metrics", "%d exports are too many; write at most %d", len(n.Metrics), mostMetricExports)
	}
	for i, e := range n.Metrics {
		r.shownPath(fmt.Sprintf("names.metrics[%d]", i), e)
	}
	for i, p := range n.Hide {
		at := fmt.Sprintf("names.hide[%d]", i)
		switch _, err := path.Match(p, ""); {
		case err != nil:
			r.addf(at, "%q has a bracket or a backslash without what belongs to it; write a pattern such as secret-*", p)
		case p == "":
			r.addf(at, "a pattern is missing; write one such as secret-*")
		case strings.Contains(p, "/"):
			r.addf(at, "%q has a slash, and a pattern is for one part of a path; write one such as secret-*", p)
		}
	}
}
