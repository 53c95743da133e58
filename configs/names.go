package configs

import (
	"fmt"
	"path"
	"strings"
)

// Names configures what the bridge learns of the names of files and exports.
type Names struct {
	Mode   Switch   `mapstructure:"mode"`
	Memory Size     `mapstructure:"memory"` // for the names of file handles
	Sample Sample   `mapstructure:"sample"` // the part of the Calls that is looked at
	Redact string   `mapstructure:"redact"` // none or hash
	Hide   []string `mapstructure:"hide"`   // patterns of names that are never shown
}

// mostHidden bounds the patterns of names that are not shown.
const mostHidden = 64

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

func (n *Names) validate(r *report) {
	r.between("names.memory", n.Memory, MiB, 4*GiB)
	r.oneOf("names.redact", n.Redact, none, RedactHash)
	if len(n.Hide) > mostHidden {
		r.addf("names.hide", "%d patterns are too many; write at most %d", len(n.Hide), mostHidden)
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
