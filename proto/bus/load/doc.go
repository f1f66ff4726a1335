// Package load measures how calls of mixed length are spread over the instances
// of a pool. It has no code but tests: fake time needs them. Real NATS servers,
// connections with a delay, callers and instances run in it, so that seconds of
// traffic take less of the clock, and what else the machine does changes nothing.
//
//	go test ./proto/bus/load -run TestLoad -v -load.full
//
// prints the table of docs/performance.md.
package load
