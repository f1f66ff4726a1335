package main

import (
	"time"

	"github.com/millrace/millrace/edge"
)

// limitFlags are the limits of an edge. An error that one of them causes names
// its flag, so the names are part of what users see.
type limitFlags struct {
	MaxBody            int           `default:"16777216" env:"MILLRACE_MAX_BODY" help:"Largest message of a client in bytes."`
	MaxDepth           int           `default:"512" env:"MILLRACE_MAX_DEPTH" help:"Deepest nesting of a message of a client."`
	MaxResult          int           `default:"67108864" env:"MILLRACE_MAX_RESULT" help:"Largest result of a worker in bytes."`
	MaxResultsInFlight int64         `default:"268435456" env:"MILLRACE_MAX_RESULTS_IN_FLIGHT" help:"Bytes of all large results that are on their way through the edge; the edge needs a few times as much memory for them."`
	CallTimeout        time.Duration `default:"60s" env:"MILLRACE_CALL_TIMEOUT" help:"How long a call may go without a result or progress."`
	CallCeiling        time.Duration `default:"1h" env:"MILLRACE_CALL_CEILING" help:"How long a call may take whatever progress it reports; an hour at most."`
	SlotWait           time.Duration `default:"500ms" env:"MILLRACE_SLOT_WAIT" help:"How long a call waits while all workers of its pool are busy."`
	WriteTimeout       time.Duration `default:"30s" env:"MILLRACE_WRITE_TIMEOUT" help:"How long a client may take nothing of what is sent to it."`
	PageSize           int           `default:"1000" env:"MILLRACE_PAGE_SIZE" help:"Most items of one page of a list."`
}

// apply sets the limits of an edge.
func (f *limitFlags) apply(cfg *edge.Config) {
	cfg.Limits.MaxBytes, cfg.Limits.MaxDepth = f.MaxBody, f.MaxDepth
	cfg.MaxResult, cfg.MaxResultsInFlight = f.MaxResult, f.MaxResultsInFlight
	cfg.CallTimeout, cfg.CallCeiling, cfg.SlotWait = f.CallTimeout, f.CallCeiling, f.SlotWait
	cfg.WriteTimeout, cfg.PageSize = f.WriteTimeout, f.PageSize
}
