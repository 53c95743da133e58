module github.com/rdmabridge/rdmabridge/internal/site

go 1.26.0

toolchain go1.26.8

require (
	github.com/yuin/goldmark v1.8.7
	golang.org/x/net v0.62.0
)
