package configs

import "fmt"

// Names configures what the bridge learns of the names of files and exports.
type Names struct {
	Mode   Switch `mapstructure:"mode"`
	Memory Size   `mapstructure:"memory"` // for the names of file handles
	Sample Sample `mapstructure:"sample"` // the part of the Calls that is looked at
	Redact string `mapstructure:"redact"` // none or hash
}

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
}
