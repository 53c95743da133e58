package configs

import (
	"bytes"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
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
	if format := single(paths, k, "log.format"); format == FormatConsole || format == FormatJSON {
		return format
	}
	return FormatAuto
}

// ReadControl returns the setting control of files, whatever is wrong with the rest of them. It fails if one of them cannot
// be read.
func ReadControl(paths []string, k Known) (Control, error) {
	files, err := Files(paths)
	for _, path := range files {
		if _, readErr := readFile(path); err == nil {
			err = readErr
		}
	}
	return Control{Path: single(paths, k, "control.path")}, err
}

// single returns a setting of files that may have problems, as far as it can be read, or its default.
func single(paths []string, k Known, setting string) string {
	l := newLoader(k)
	files, _ := Files(paths)
	for _, path := range files {
		if data, err := readFile(path); err == nil {
			l.add(path, data)
		}
	}
	l.bind()
	return l.v.GetString(setting)
}

// readFile reads as much of a file as shows whether it is too long.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f)
}

func readAll(r io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, maxFile+1)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// A loader makes one configuration of documents. Viper has the values: defaults, the documents in their order,
// variables of the environment, flags. The nodes of the documents have the positions.
type loader struct {
	k Known
	r *report
	v *viper.Viper
}

func newLoader(k Known) *loader {
	l := &loader{k: k, r: &report{source: newSource()}, v: viper.New()}
	for path, value := range defaults() {
		l.v.SetDefault(path, value)
	}
	return l
}

// add adds a file. It reports whether its values are of any use.
func (l *loader) add(name string, data []byte) bool {
	l.r.files = append(l.r.files, name)
	d, ok := parseDocument(name, data, l.r)
	if !ok || d.root == nil {
		return ok
	}
	w := l.r.source.read(d, l.k.Environment, l.r)
	if w.unusable {
		return false
	}
	_ = l.v.MergeConfigMap(l.forViper(d.values(l.r))) // never an error
	return !w.incomplete
}

// forViper makes of the values of a document what viper merges as users expect. Viper replaces every list. It ignores a
// null that is to replace settings. It takes an unknown setting with a dot in its name for a path. Names of listeners and
// upstreams are values and no keys, so viper leaves their dots and capitals alone.
func (l *loader) forViper(values map[string]any) map[string]any {
	schema.prune(values)
	for name, s := range schema.names {
		if s.named() { // these lists add up
			earlier, _ := l.v.Get(name).([]any)
			more, _ := values[name].([]any)
			values[name] = append(earlier, more...)
			l.r.source.entries[name] += len(more)
		}
	}
	return values
}

// bind lets variables of the environment override settings, and flags override both. Empty ones override nothing.
func (l *loader) bind() {
	for _, path := range slices.Sorted(maps.Keys(variables)) {
		name := variables[path]
		if f := l.k.flag(path); f != nil && f.Changed && f.Value.String() != "" {
			name = "--" + f.Name
			_ = l.v.BindPFlag(path, f) // fails only for nil
		} else if value := os.Getenv(name); l.k.Environment && value != "" {
			l.v.MustBindEnv(path, name)
			if n, err := strconv.Atoi(value); err == nil && !schema.find(path).text {
				l.v.Set(path, n) // viper has a variable as text, and a number in quotes is an error
			}
		} else {
			continue
		}
		l.r.files = append(l.r.files, name)
		l.r.source.positions[path] = position{file: name}
	}
}

// config makes the configuration, unless the documents are of no use.
func (l *loader) config(usable bool) (*Config, error) {
	l.bind()
	if !usable {
		return nil, l.r.err()
	}
	c := l.decode()
	c.validate(l.k, l.r)
	if err := l.r.err(); err != nil {
		return nil, err
	}
	c.warn(l.k, l.r)
	c.warnings = append(c.warnings, l.k.unknownVariables()...)
	return c, nil
}

// decode returns what viper has, with all defaults.
func (l *loader) decode() *Config {
	c := &Config{source: l.r.source, files: l.r.files}
	if err := l.v.Unmarshal(c, viper.DecodeHook(decodeValue)); err != nil {
		l.r.addDecode(err)
	}
	c.setDefaults()
	return c
}

// inFiles names the files, for problems that belong to no line.
func (r *report) inFiles() string { return strings.Join(r.files, ", ") }
