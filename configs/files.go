package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files returns the files that paths name, in the order in which they are merged. A directory stands for those of
// its files whose names end in .yaml or .yml and do not begin with a dot, in the order of their names.
func Files(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w; name the configuration file, which rdmabridge init writes", path, errors.Unwrap(err))
		}
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		in, err := filesIn(path)
		if err != nil {
			return nil, err
		}
		files = append(files, in...)
	}
	return files, nil
}

// filesIn returns the files of a directory. Names in it may be symbolic links, as those from ConfigMaps are.
func filesIn(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if ext := filepath.Ext(path); strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s is a directory, and no file in it ends in .yaml or .yml; name a file, or another directory", dir)
	}
	return files, nil
}
