package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/viper"
)

// maxFile bounds a file before it is parsed.
const maxFile = 1 << 20

// Known is what this build of the bridge can do. Package configs imports
// nothing of the bridge, so its caller says.
type Known struct {
	Providers []string                         // RDMA providers that are built in
	Program   func(name string) (uint32, bool) // RPC program by name; nil knows numbers only
}

// LoadFile is Load for the file at path. An error that is no Problems means the
// file could not be read.
func LoadFile(path string, k Known) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(f, maxFile+1)); err != nil {
		return nil, fmt.Errorf("configs: %w", err)
	}
	return load(path, b.Bytes(), k)
}

// Load reads a configuration, gives defaults, and checks every rule. Its error is
// a Problems with all of them. Keys may be written in any case.
func Load(data []byte, k Known) (*Config, error) { return load("", data, k) }

func load(file string, data []byte, k Known) (*Config, error) {
	r := &report{file: file}
	if len(data) > maxFile {
		r.addf("", "longer than %s", Size(maxFile))
		return nil, r.err()
	}
	// No key can hold the delimiter, so a.b: is an unknown key, not a path.
	v := viper.NewWithOptions(viper.KeyDelimiter("\x00"))
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
		r.addSyntax(err)
		return nil, r.err()
	}
	if _, err := readSource(data, r); err != nil {
		r.addSyntax(err)
		return nil, r.err()
	}
	c := new(Config)
	if err := v.Unmarshal(c, viper.DecodeHook(decodeValue)); err != nil {
		r.addDecode(err)
	}
	c.setDefaults()
	c.validate(k, r)
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Check reports every rule that c, which is complete, breaks: a Problems without
// lines, or nil. It is for what was put together of several files.
func (c *Config) Check(k Known) error {
	r := &report{}
	c.validate(k, r)
	return r.err()
}

// addSyntax notes what the YAML parser said, which may be several things, and
// moves its line numbers to where ours are.
func (r *report) addSyntax(err error) {
	var parse viper.ConfigParseError
	if errors.As(err, &parse) {
		err = parse.Unwrap()
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	for s := range strings.SplitSeq(text, "\n") {
		p := problem{File: r.file, Text: strings.TrimSpace(s)}
		if rest, ok := strings.CutPrefix(p.Text, "line "); ok {
			if number, what, ok := strings.Cut(rest, ": "); ok {
				if n, err := strconv.Atoi(number); err == nil {
					p.Line, p.Text = n, what
				}
			}
		}
		if strings.HasPrefix(p.Text, "cannot unmarshal") && strings.HasSuffix(p.Text, "into map[string]interface {}") {
			p.Text = "want settings, name: value"
		}
		r.problems = append(r.problems, p)
	}
}

// addDecode notes the leaves of mapstructure's tree of errors, which carry the
// names of settings. What wraps them is prose.
func (r *report) addDecode(err error) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			r.addDecode(e)
		}
	case interface {
		Name() string
		Unwrap() error
	}:
		r.addf(settingPath(e.Name()), "%v", e.Unwrap())
	case interface{ Unwrap() error }:
		r.addDecode(e.Unwrap())
	default:
		r.addf("", "%v", err)
	}
}

// settingPath is the path of a setting from mapstructure's name for it.
func settingPath(name string) string { return strings.ToLower(name) }

// decodeValue is called by mapstructure for every value before it converts.
// Values become the types of value.go here, and what mapstructure would bend to
// fit, a number for a list, text for a number, is refused.
func decodeValue(from, to reflect.Value) (any, error) {
	if from.Kind() == reflect.Interface {
		from = from.Elem()
	}
	data := from.Interface()
	switch to.Interface().(type) {
	case Size:
		return scalar(data, ParseSize)
	case Duration:
		return scalar(data, parseDuration)
	case Switch:
		return scalar(data, parseSwitch)
	case Prefix:
		return scalar(data, parsePrefix)
	case Ports:
		return scalar(data, parsePorts)
	case Program:
		return scalar(data, func(s string) (Program, error) { return Program(s), nil })
	}
	switch to.Kind() {
	case reflect.Slice:
		if from.Kind() != reflect.Slice {
			return nil, fmt.Errorf("want a list, not %s", describe(data))
		}
	case reflect.Struct:
		if from.Kind() != reflect.Map {
			return nil, fmt.Errorf("want settings, name: value, not %s", describe(data))
		}
	case reflect.String:
		if from.Kind() != reflect.String {
			return nil, fmt.Errorf("want text, not %s", describe(data))
		}
	case reflect.Int:
		if n, ok := data.(int); !ok {
			return nil, fmt.Errorf("want a whole number, not %s", describe(data))
		} else if n <= 0 {
			return nil, fmt.Errorf("%d must be greater than 0", n)
		}
	case reflect.Uint32:
		if n, ok := data.(int); !ok || n < 0 || n > 1<<32-1 {
			return nil, fmt.Errorf("want a whole number up to 4294967295, not %s", describe(data))
		}
	}
	return data, nil
}

// scalar parses a plain value.
func scalar[T any](data any, parse func(string) (T, error)) (any, error) {
	switch data.(type) {
	case string, int, int64, uint64, bool:
	default:
		return nil, fmt.Errorf("want a plain value, not %s", describe(data))
	}
	v, err := parse(fmt.Sprint(data))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// describe is data for a message, briefly.
func describe(data any) string {
	switch d := data.(type) {
	case string:
		if len(d) > 40 {
			d = d[:40] + "..."
		}
		return strconv.Quote(d)
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(d)
	}
	switch reflect.ValueOf(data).Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "settings"
	}
	return fmt.Sprintf("%T", data)
}

// ResolveProgram finds the number of an RPC program.
func (k Known) ResolveProgram(p Program) (uint32, error) {
	if k.Program != nil {
		if n, ok := k.Program(string(p)); ok {
			return n, nil
		}
	}
	n, err := strconv.ParseUint(string(p), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no RPC program; write a name such as nfs or mount, or a number", string(p))
	}
	return uint32(n), nil
}
