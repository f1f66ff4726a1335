package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Level is how severe a message of [Call.Log] is. Levels compare: a more
// severe one is greater.
type Level int

// The levels, which are those of syslog.
const (
	LevelDebug Level = iota
	LevelInfo
	LevelNotice
	LevelWarning
	LevelError
	LevelCritical
	LevelAlert
	LevelEmergency
	levels // how many there are
)

// String returns the name of the level in the protocol.
func (l Level) String() string {
	names := [levels]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
	if l < 0 || l >= levels {
		return "unknown"
	}
	return names[l]
}

// wantsLog returns the least severe level that the client wants to see, and
// false if it wants none.
func (c *Call) wantsLog() (Level, bool) {
	wanted := c.from.GetLogLevel()
	if wanted == "" {
		return 0, false
	}
	for level := range levels {
		if level.String() == wanted {
			return level, true
		}
	}
	return 0, false
}

// Logs reports whether the client wants to see messages of the level.
func (c *Call) Logs(level Level) bool {
	least, wanted := c.wantsLog()
	return wanted && level >= least && level < levels
}

// Log sends a message to the client, for the people there: logger names the
// part of the worker that speaks, and may be empty; data is a text or any
// other value that can be marshalled to JSON. What is below the level the
// client asked for is dropped, and so is everything if it asked for nothing.
// The client sees what is logged: no secrets, and nothing about the inside. No
// message is lost: Log waits for a client that reads slowly.
func (c *Call) Log(level Level, logger string, data any) {
	if !c.Logs(level) {
		return
	}
	raw, err := c.w.codec.marshal(data)
	if err != nil {
		c.w.log.Error("a log message cannot be written", "pool", c.w.cfg.Pool, "name", c.name, "error", err)
		return
	}
	if len(raw) == 0 {
		raw = []byte("null")
	}
	if !c.take() {
		return
	}
	defer c.release()
	c.sendNow()
	// An error means the call is over; its context says so to the handler.
	_ = c.sink.log(&millracev1.LogMessage{Level: level.String(), Logger: validText(logger), Data: raw})
}

// Logger returns a logger that writes to the client by [Call.Log]: each record
// becomes an object with the message as msg and its attributes. The levels of
// slog become debug, info, warning and error; those between Info and Warn
// become notice, and 4, 8 and 12 above Error critical, alert and emergency.
func (c *Call) Logger() *slog.Logger { return slog.New(&logHandler{call: c}) }

// levelOf returns the level for one of slog.
func levelOf(l slog.Level) Level {
	switch {
	case l < slog.LevelInfo:
		return LevelDebug
	case l == slog.LevelInfo:
		return LevelInfo
	case l < slog.LevelWarn:
		return LevelNotice
	case l < slog.LevelError:
		return LevelWarning
	case l < slog.LevelError+4:
		return LevelError
	case l < slog.LevelError+8:
		return LevelCritical
	case l < slog.LevelError+12:
		return LevelAlert
	default:
		return LevelEmergency
	}
}

// logHandler is the handler behind Call.Logger. It does not change.
type logHandler struct {
	call *Call
	// with are the WithAttrs and WithGroup of the logger, in their order; they
	// are applied to a handler made for each record.
	with []func(slog.Handler) slog.Handler
}

// Enabled implements [slog.Handler].
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return h.call.Logs(levelOf(level))
}

// Handle implements [slog.Handler].
func (h *logHandler) Handle(ctx context.Context, record slog.Record) error {
	record.Time = time.Time{} // left out: the notification arrives now
	var buf bytes.Buffer
	var to slog.Handler = slog.NewJSONHandler(&buf, &slog.HandlerOptions{
		Level: record.Level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if _, own := a.Value.Any().(slog.Level); own && len(groups) == 0 && a.Key == slog.LevelKey {
				return slog.Attr{} // the notification has it
			}
			return a
		},
	})
	for _, with := range h.with {
		to = with(to)
	}
	if err := to.Handle(ctx, record); err != nil {
		return err
	}
	data, err := uniqueNames(buf.Bytes())
	if err != nil {
		return err
	}
	h.call.Log(levelOf(record.Level), "", data)
	return nil
}

// uniqueNames returns data without the members that a later one of the same
// name replaces. slog writes them as they come.
func uniqueNames(data []byte) (json.RawMessage, error) {
	data = bytes.TrimSpace(data)
	if checkObject("a record", data) == nil {
		return data, nil
	}
	var last map[string]any
	if err := json.Unmarshal(data, &last); err != nil {
		return nil, err
	}
	return json.Marshal(last)
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *logHandler) and(with func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{call: h.call, with: append(slices.Clip(h.with), with)}
}
