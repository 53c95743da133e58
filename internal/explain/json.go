package explain

import (
	"encoding/json"
	"io"
)

// A jsonPrinter prints one JSON object a line.
type jsonPrinter struct{ enc *json.Encoder }

func newJSONPrinter(w io.Writer) printer {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &jsonPrinter{enc}
}

func (p *jsonPrinter) begin(h *header) error { return p.enc.Encode(h) }

func (p *jsonPrinter) message(m *message) error { return p.enc.Encode(m) }

func (p *jsonPrinter) end(s *summary) error { return p.enc.Encode(s) }
