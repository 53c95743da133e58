package translate

import (
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/names"
)

// Names translates what is learned of names.
func Names(c *configs.Names) names.Options {
	return names.Options{Memory: int(c.Memory), Sample: float64(c.Sample), Hash: c.Redact == configs.RedactHash, Hide: c.Hide}
}
