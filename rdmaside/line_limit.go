package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/loglimit"

// A LineLimit bounds the log lines that peers can cause by connecting again and again.
type LineLimit = loglimit.Limit
