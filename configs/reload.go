package configs

import "time"

// Reload is how changes of the file are noticed. SIGHUP always works.
type Reload struct {
	Watch Duration `mapstructure:"watch"` // how often the file is looked at, or none; default 2s
}

func (r *Reload) validate(rep *report) {
	if r.Watch > 0 && r.Watch < Duration(10*time.Millisecond) {
		rep.addf("reload.watch", "%s: want at least 10ms", r.Watch)
	}
}
