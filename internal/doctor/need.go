package doctor

// A Need is what a configuration asks of the host.
type Need struct {
	// Configured says that there is a configuration. Without one the doctor does not know
	// whether the host's devices matter.
	Configured bool
	// Verbs says that a provider of the configuration uses the kernel's RDMA devices.
	Verbs bool
	// Memory is how many octets such a provider may have registered at a time.
	Memory uint64
	// Connections is how many connections such a provider may have.
	Connections uint64
}

// severity returns how bad it is that something is missing without which no provider over verbs
// works: an error if the configuration has one, and good to know if it has none.
func (n Need) severity() Severity {
	switch {
	case n.Verbs:
		return Error
	case n.Configured:
		return Note
	}
	return Warning
}
