package bench

import "encoding/json"

// MarshalJSON writes the ratios and the results of c by the names of its targets.
func (c *Comparison) MarshalJSON() ([]byte, error) {
	j := struct {
		Case     string                          `json:"case"`
		Baseline string                          `json:"baseline"`
		Ratios   map[string]map[string]Quartiles `json:"ratios"`  // by target and metric
		Results  map[string][]*Result            `json:"results"` // by target
		Failures []string                        `json:"failures,omitempty"`
	}{
		Case: c.Case.Name, Baseline: c.Targets[c.Baseline].Name,
		Ratios: make(map[string]map[string]Quartiles), Results: make(map[string][]*Result),
	}
	for i, t := range c.Targets {
		j.Results[t.Name] = c.Results[i]
		j.Ratios[t.Name] = make(map[string]Quartiles)
		for _, m := range Metrics {
			if q := c.Ratios(i, m); q.N > 0 {
				j.Ratios[t.Name][m.Name] = q
			}
		}
	}
	for _, err := range c.Failures {
		j.Failures = append(j.Failures, err.Error())
	}
	return json.Marshal(j)
}
