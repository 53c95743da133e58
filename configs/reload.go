package configs

// Reload configures how the bridge notices changes of the file. SIGHUP always works.
type Reload struct {
	Watch Duration `mapstructure:"watch"` // how often the bridge looks at the file, or none
}

const minWatch = 10 * millisecond

func (w *Reload) validate(r *report) { r.atLeastOrNone("reload.watch", w.Watch, minWatch) }
