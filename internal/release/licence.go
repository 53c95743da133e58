package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences, by SPDX identifier, that a module in the bridge may have. All of them let
// anybody pass the binary on as long as the notices go with it. A module under another licence needs a
// decision before it is linked in, and a line here.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// notLinked are files of licences whose subject is not in any binary, although a package of their directory is.
var notLinked = map[string]string{
	standard + "/src/crypto/internal/boring/LICENSE": "object files that Go links in only with GOEXPERIMENT=boringcrypto",
}

// chosen are files that offer a choice of licences, as their SPDX line says. The first is taken.
var chosen = map[string]string{
	"kernel.org/pub/linux/libs/security/libcap/psx/License": "BSD-3-Clause OR GPL-2.0-only",
}

// enough is how much of a licence's text must be a licence that licensecheck knows, in percent. The
// rest are names, years and headings.
const enough = 75

// isLicence matches the names of files with licences, and of files that have to go with them.
var (
	isLicence = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-_.].*)?$`)
	isNotice  = regexp.MustCompile(`(?i)^(notice|patents|copyright|authors)([-_.](txt|md))?$`)
)

// A licenceFile is a file of a module that must go with the binary.
type licenceFile struct {
	name string // below the module's directory
	text []byte
	ids  []string // SPDX identifiers; none if it is a notice
	bad  string   // what is wrong with it, or empty
}

// readLicences reads the licences and notices of m.
func (m *module) readLicences() ([]licenceFile, error) {
	var files []licenceFile
	for _, dir := range m.directories() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			licence, notice := isLicence.MatchString(e.Name()), isNotice.MatchString(e.Name())
			if !e.Type().IsRegular() || !licence && !notice || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			name, err := filepath.Rel(m.dir, filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			if notLinked[m.path+"/"+name] != "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(m.dir, name))
			if err != nil {
				return nil, err
			}
			f := licenceFile{name: name, text: text}
			if licence {
				f.ids, f.bad = classify(text)
				if choice := chosen[m.path+"/"+name]; choice != "" && bytes.Contains(text, []byte("SPDX-License-Identifier: "+choice)) {
					first, _, _ := strings.Cut(choice, " OR ")
					f.ids, f.bad = []string{first}, ""
				}
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// classify returns the licences in text, and what is wrong with them.
func classify(text []byte) (ids []string, bad string) {
	cover := licensecheck.Scan(text)
	for _, m := range cover.Match {
		if !m.IsURL && !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	switch {
	case len(ids) == 0:
		return nil, "no licence is recognised in it"
	case cover.Percent < enough:
		return ids, fmt.Sprintf("only %.0f%% of it is the text of a known licence", cover.Percent)
	}
	for _, id := range ids {
		if !slices.Contains(allowed, id) {
			return ids, fmt.Sprintf("licence %s is not one of the allowed: %s", id, strings.Join(allowed, ", "))
		}
	}
	return ids, ""
}

// licences returns the identifiers of all licences of m.
func (m *module) licences() []string {
	all := map[string]bool{}
	for _, f := range m.files {
		for _, id := range f.ids {
			all[id] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// checkLicence returns an error unless m may be linked into the bridge: it has a licence, and all that
// it has are allowed.
func (m *module) checkLicence() error {
	if len(m.licences()) == 0 {
		return fmt.Errorf("%s %s: no licence in %s", m.path, m.version, m.dir)
	}
	var err error
	for _, f := range m.files {
		if f.bad != "" {
			err = errors.Join(err, fmt.Errorf("%s %s: %s: %s", m.path, m.version, f.name, f.bad))
		}
	}
	return err
}
