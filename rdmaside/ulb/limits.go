package ulb

// Limits bound what a binding may assume.
type Limits struct{}
