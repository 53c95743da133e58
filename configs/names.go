package configs

// Names configures what the bridge learns of the names of files and exports.
type Names struct {
	Mode   Switch   `mapstructure:"mode"`
	Memory Size     `mapstructure:"memory"` // for the names of file handles
	Sample Fraction `mapstructure:"sample"` // the part of the Calls that is looked at
	Redact string   `mapstructure:"redact"` // none or hash
}

// RedactHash is a way to show names.
const RedactHash = "hash"

func (n *Names) validate(r *report) {
	r.between("names.memory", n.Memory, MiB, 4*GiB)
	r.oneOf("names.redact", n.Redact, none, RedactHash)
}
