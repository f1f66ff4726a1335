package worker

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// manifest writes what the worker offers. Two workers that offer the same get
// the same bytes, in whatever order it was added: the hash of the manifest is
// how edges see that instances are interchangeable.
func (w *Worker) manifest() ([]byte, error) {
	m := &millracev1.Manifest{
		Pool:         w.cfg.Pool,
		Version:      w.cfg.Version,
		Title:        validText(w.cfg.Title),
		Instructions: validText(w.cfg.Instructions),
	}
	w.mu.RLock()
	for _, name := range slices.Sorted(maps.Keys(w.tools)) {
		m.Tools = append(m.Tools, w.tools[name].entry)
	}
	for _, uri := range slices.Sorted(maps.Keys(w.resources)) {
		m.Resources = append(m.Resources, w.resources[uri].entry)
	}
	for _, uri := range slices.Sorted(maps.Keys(w.templates)) {
		m.ResourceTemplates = append(m.ResourceTemplates, w.templates[uri].entry)
	}
	for _, name := range slices.Sorted(maps.Keys(w.prompts)) {
		m.Prompts = append(m.Prompts, w.prompts[name].entry)
	}
	for _, name := range slices.Sorted(maps.Keys(w.problems)) {
		m.Problems = append(m.Problems, &millracev1.Problem{Item: name, Reason: validText(w.problems[name])})
	}
	w.mu.RUnlock()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("worker: writing the manifest: %w", err)
	}
	return data, nil
}
