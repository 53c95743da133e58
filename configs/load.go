package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/viper"
)

// maxFile bounds a file before it is parsed.
const maxFile = 1 << 20

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
