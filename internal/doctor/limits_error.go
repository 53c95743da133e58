package doctor

import (
	"errors"
	"syscall"
)

// A limitsProblem is why a driver did not tell its limits.
type limitsProblemKind uint8

const (
	limitsOther      limitsProblemKind = iota
	limitsOwnLibrary                   // the driver makes contexts for its own library only
	limitsFile                         // the file is missing or may not be opened
	limitsCgroup                       // a cgroup allows no more contexts
)

// limitsProblem sorts the errors of Sources.Limits.
func limitsProblem(err error) limitsProblemKind {
	switch {
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSPC):
		return limitsOwnLibrary
	case errors.Is(err, syscall.EAGAIN):
		return limitsCgroup // rdma_cgroup.c: rdmacg_try_charge
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		return limitsFile
	}
	return limitsOther
}
