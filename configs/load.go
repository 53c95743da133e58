package configs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/viper"
)

// maxFile is the longest file that Load parses.
const maxFile = 1 << 20

// LoadFile loads the file at path as Load does. If it cannot read the file, the error is not of
// type Problems.
func LoadFile(path string, k Known) (*Config, error) { return LoadFiles([]string{path}, k) }

// LoadFiles loads several files as one configuration: later ones override settings of earlier ones, and add to
// their lists of listeners, upstreams and tenants. A path may be a directory: Files.
func LoadFiles(paths []string, k Known) (*Config, error) {
	files, err := Files(paths)
	if err != nil {
		return nil, err
	}
	l := newLoader(k)
	usable := true
	for _, path := range files {
		data, err := readFile(path)
		if err != nil {
			return nil, err
		}
		usable = l.add(path, data) && usable
	}
	return l.config(usable)
}

// LoadReader loads what r has as Load does. Problems name it as name.
func LoadReader(name string, r io.Reader, k Known) (*Config, error) {
	data, err := readAll(r)
	if err != nil {
		return nil, err
	}
	l := newLoader(k)
	return l.config(l.add(name, data))
}

// Load parses a configuration, sets the defaults, and checks every rule. Its error is of type
// Problems and lists every problem. Keys may be written in any case.
func Load(data []byte, k Known) (*Config, error) {
	l := newLoader(k)
	return l.config(l.add("", data))
}

// Check reports every rule that the complete configuration c breaks, as Problems
// without lines, or nil. It is for a configuration that was combined from two versions of its files.
func (c *Config) Check(k Known) error {
	r := &report{}
	c.validate(k, r)
	return r.err()
}

// LogFormat returns log.format of files that LoadFiles has refused, as far as it can be read, or the default.
func LogFormat(paths []string, k Known) string {
	l := newLoader(k)
	files, _ := Files(paths)
	for _, path := range files {
		if data, err := readFile(path); err == nil {
			l.add(path, data)
		}
	}
	l.addVariables()
	if log, ok := l.values["log"].(map[string]any); ok && log["format"] == FormatConsole {
		return FormatConsole
	}
	return formatJSON
}

// readFile reads as much of a file as shows whether it is too long.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	defer f.Close()
	return readAll(f)
}

func readAll(r io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, maxFile+1)); err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	return b.Bytes(), nil
}

// A loader makes one configuration of documents.
type loader struct {
	k           Known
	r           *report
	environment environment
	values      map[string]any // of all documents so far
}

func newLoader(k Known) *loader {
	r := &report{source: &source{positions: make(map[string]position)}}
	return &loader{k: k, r: r, environment: environmentOf(k), values: make(map[string]any)}
}

// add adds a file. It reports whether its values are of any use.
func (l *loader) add(name string, data []byte) bool {
	l.r.files = append(l.r.files, name)
	d, ok := parseDocument(name, data, l.r)
	if !ok || d.root == nil {
		return ok
	}
	expanded, ok := l.environment.expand(d, l.r)
	return l.put(d, expanded) && ok
}

// put adds a document. Nodes that are expanded have a value from the environment.
func (l *loader) put(d document, expanded expandedNodes) bool {
	if !l.r.source.read(d, l.values, expanded, l.r) {
		return false
	}
	l.merge(l.values, d.values(l.r), "", d.name)
	return true
}

// addVariables adds the settings that the environment has.
func (l *loader) addVariables() {
	for _, d := range l.environment.overrides() {
		l.r.files = append(l.r.files, d.name)
		l.put(d, expandedNodes{d.leaf(): true})
	}
}

// merge puts the settings within path of the document file over those before.
func (l *loader) merge(into, from map[string]any, path, file string) {
	for name, next := range from {
		p := name
		if path != "" {
			p = path + "." + name
		}
		switch before := into[name].(type) {
		case map[string]any:
			if next, ok := next.(map[string]any); ok {
				l.merge(before, next, p, file)
				continue
			}
		case []any:
			if sc := schema.at(p); sc != nil && sc.named() {
				if next == nil {
					continue
				}
				if next, ok := next.([]any); ok {
					into[name] = append(before, next...)
					continue
				}
			}
		}
		into[name] = next
		l.r.source.forget(p, file)
	}
}

// config makes the configuration, unless the documents are of no use.
func (l *loader) config(usable bool) (*Config, error) {
	l.addVariables()
	if !usable {
		return nil, l.r.err()
	}
	// No key can contain this delimiter, so viper reads a.b: as one unknown key and
	// not as a path.
	v := viper.NewWithOptions(viper.KeyDelimiter("\x00"))
	if err := v.MergeConfigMap(l.values); err != nil {
		l.r.addf("", "%v", err)
		return nil, l.r.err()
	}
	c := &Config{source: l.r.source, files: l.r.files}
	if err := v.Unmarshal(c, viper.DecodeHook(decodeValue)); err != nil {
		l.r.addDecode(err)
	}
	c.setDefaults()
	c.validate(l.k, l.r)
	if err := l.r.err(); err != nil {
		return nil, err
	}
	c.warn(l.k, l.r)
	c.warnings = append(c.warnings, l.environment.unknown()...)
	return c, nil
}

// inFiles names the files, for problems that belong to no line.
func (r *report) inFiles() string { return strings.Join(r.files, ", ") }
