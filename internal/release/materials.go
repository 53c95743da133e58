package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeMaterials writes the bill of materials of b. Two runs over one binary write the same octets: there
// is neither a time nor a random serial number in it.
func (b *binary) writeMaterials(to io.Writer) error {
	bom := cyclonedx.NewBOM()
	root := b.component()
	bom.Metadata = &cyclonedx.Metadata{
		Component: &root,
		Tools: &cyclonedx.ToolsChoice{Components: &[]cyclonedx.Component{{
			Type: cyclonedx.ComponentTypeApplication, Name: own + "/internal/release",
		}}},
	}
	components, refs := []cyclonedx.Component{}, []string{}
	dependencies := []cyclonedx.Dependency{{Ref: root.BOMRef}}
	for _, m := range b.modules {
		c, err := m.component()
		if err != nil {
			return err
		}
		components, refs = append(components, c), append(refs, c.BOMRef)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: c.BOMRef})
	}
	dependencies[0].Dependencies = &refs
	bom.Components, bom.Dependencies = &components, &dependencies
	e := cyclonedx.NewBOMEncoder(to, cyclonedx.BOMFileFormatJSON)
	e.SetPretty(true)
	return e.EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// component describes the binary itself.
func (b *binary) component() cyclonedx.Component {
	ref := "pkg:golang/" + own + "@" + b.version
	var properties []cyclonedx.Property
	for _, k := range slices.Sorted(maps.Keys(b.settings)) {
		properties = append(properties, cyclonedx.Property{Name: "go:build:" + k, Value: b.settings[k]})
	}
	return cyclonedx.Component{
		BOMRef: ref, Type: cyclonedx.ComponentTypeApplication, Name: b.name, Version: b.version, PackageURL: ref,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: b.sha256}},
		Licenses:   identifiers([]string{"Apache-2.0"}),
		Properties: &properties,
	}
}

// component describes a module that is in the binary.
func (m *module) component() (cyclonedx.Component, error) {
	ref := "pkg:golang/" + m.path + "@" + m.version
	c := cyclonedx.Component{
		BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: ref,
		Scope: cyclonedx.ScopeRequired, Licenses: identifiers(m.licences()),
	}
	if m.sum == "" {
		return c, nil
	}
	// The sum of a module is the SHA-256 of a list of its files, in base64.
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:"))
	if err != nil {
		return c, fmt.Errorf("%s: sum %q: %w", m.path, m.sum, err)
	}
	c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
	return c, nil
}

// identifiers returns a choice of all the licences with these SPDX identifiers.
func identifiers(ids []string) *cyclonedx.Licenses {
	var l cyclonedx.Licenses
	for _, id := range ids {
		l = append(l, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &l
}
