package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImages checks that each image has the documents of its binary, and that the digests of the images that it is built
// from can be given.
func TestImages(t *testing.T) {
	files, err := filepath.Glob("../../deploy/docker/Dockerfile*")
	if err != nil || len(files) < 2 {
		t.Fatalf("Dockerfiles %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		build, image, _ := strings.Cut(string(text), "\nFROM ${GO_IMAGE} AS build\n")
		if !strings.Contains(build, "\nARG GO_IMAGE=") {
			t.Errorf("%s: the image to build with has no argument", file)
		}
		if !strings.Contains(image, "go run ./internal/release documents -version \"${VERSION}\" \"$program\"") {
			t.Errorf("%s makes no documents", file)
		}
		if !strings.Contains(image, "./cmd/rdmabridge ./cmd/rdmabridge-bench\n") || !strings.Contains(image, "COPY --from=build /programs/ /\n") {
			t.Errorf("%s: the image does not have both programs", file)
		}
		_, image, _ = strings.Cut(image, "\nFROM ")
		if base, rest, _ := strings.Cut(image, "\n"); base != "scratch" && base != "${BASE_IMAGE}" || !strings.Contains(rest, "COPY --from=build /doc/ ") {
			t.Errorf("%s: the image has no documents, or a base that cannot be named by its digest: %s", file, base)
		}
	}
}
