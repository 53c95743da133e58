package status

// Judge returns what is wrong in now, the worst first. before is a document of about half a minute
// earlier, or nil.
func Judge(now, before *Document) []Problem { return nil }
