package worker

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// contract sums up what a caller of a tool relies on. Versions of a worker whose
// tools have the same one share the calls of the tool; a version that has
// another is never given a call that was made for this one. What is for people
// (title, description, icons) is no part of it, nor is the order of members.
func contract(definition []byte) ([]byte, error) {
	var relied struct {
		Name         string `json:"name"`
		InputSchema  any    `json:"inputSchema"`
		OutputSchema any    `json:"outputSchema"`
		Annotations  any    `json:"annotations"`
	}
	d := json.NewDecoder(bytes.NewReader(definition))
	d.UseNumber()
	if err := d.Decode(&relied); err != nil {
		return nil, fmt.Errorf("the definition cannot be read: %w", err)
	}
	canonical, err := json.Marshal(&relied) // members of maps are sorted
	if err != nil {
		return nil, fmt.Errorf("the definition cannot be written: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return sum[:16], nil
}

// keeps reports whether the tool has the contract that the caller has seen.
func (t *tool) keeps(req *millracev1.CallToolRequest) bool {
	return len(req.GetContract()) == 0 || bytes.Equal(req.GetContract(), t.entry.GetContract())
}
