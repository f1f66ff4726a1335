package jsonrpc

import (
	"bytes"
	"testing"
	"unsafe"
)

func TestPieces(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]Pieces{
		"none":           nil,
		"small":          Whole([]byte(`{"a":1}`)),
		"in two":         {[]byte(`{"a":`), []byte(`1}`)},
		"large":          Whole(bytes.Repeat([]byte("1"), LargeBytes)),
		"large in three": {[]byte(`{"a":`), bytes.Repeat([]byte("1"), LargeBytes), []byte(`}`)},
	} {
		want := AppendResult(nil, []byte(`"id"`), result.Join())
		if result == nil {
			want = AppendResult(nil, []byte(`"id"`), nil)
		}
		got := ResultPieces([]byte(`"id"`), result)
		if !bytes.Equal(got.Join(), want) || got.Len() != len(want) {
			t.Errorf("%s: %.100s, want %.100s", name, got.Join(), want)
		}
		for i, piece := range result {
			if len(piece) >= LargeBytes && unsafe.SliceData(got[i+1]) != unsafe.SliceData(piece) {
				t.Errorf("%s: the large piece was copied", name)
			}
		}
	}
}
