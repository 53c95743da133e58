// Package grafanatest compares deploy/grafana/rdmabridge.json with the types that Grafana has for dashboards. It is a module of
// its own, so that nobody who builds the bridge needs them: make ci runs it.
package grafanatest

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	textpanel "github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// TestDashboardTypes: the dashboard has the form that Grafana's own types have.
func TestDashboardTypes(t *testing.T) {
	// Not plugins.RegisterDefaultPlugins, which brings all that Grafana has: half a minute of compiling.
	for _, panel := range []func() variants.PanelcfgConfig{stat.VariantConfig, table.VariantConfig, textpanel.VariantConfig, timeseries.VariantConfig} {
		cog.NewRuntime().RegisterPanelcfgVariant(panel())
	}
	cog.NewRuntime().RegisterDataqueryVariant(prometheus.VariantConfig())
	text, err := os.ReadFile("../../deploy/grafana/rdmabridge.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeDashboard(text); err != nil {
		t.Errorf("Grafana's types do not have what the dashboard has: %v", err)
	}
	if decodeDashboard(bytes.Replace(text, []byte(`"legendFormat"`), []byte(`"legend"`), 1)) == nil {
		t.Error("Grafana's types have any field")
	}
}

// decodeDashboard decodes a dashboard into the types that Grafana generates from its schema.
func decodeDashboard(text []byte) error {
	var board dashboard.Dashboard // every Grafana since 9 reads this schema; only Grafana 12 reads its successor
	var wrong cog.BuildErrors
	if err := board.UnmarshalJSONStrict(text); !errors.As(err, &wrong) || len(wrong) > 0 { // it returns no error as an empty list
		return err
	}
	return board.Validate()
}
