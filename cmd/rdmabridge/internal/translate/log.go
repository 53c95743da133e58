package translate

import (
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/accesslog"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
)

// Log translates the settings of the log.
func Log(c configs.Log) logsink.Settings {
	return logsink.Settings{Level: c.Level, Format: logFormats[c.Format]}
}

var logFormats = map[string]logsink.Format{
	configs.FormatAuto: logsink.Auto, configs.FormatJSON: logsink.JSON, configs.FormatConsole: logsink.Console,
}

var accessModes = map[string]accesslog.Mode{
	configs.AccessFailed: accesslog.Failed, configs.AccessSlow: accesslog.Slow, configs.AccessSampled: accesslog.Sampled, configs.AccessAll: accesslog.All,
}

// AccessLog translates the settings of the access log.
func AccessLog(c *configs.AccessLog) accesslog.Settings {
	return accesslog.Settings{Mode: accessModes[c.Mode], Slower: c.Slower.Value(), Sample: float64(c.Sample)}
}
