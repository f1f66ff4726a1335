package index

import (
	"strings"
	"unicode/utf8"
)

// Snippet returns the sentence of body that has most words of the query, in any
// of their forms; the first sentence when none has any. It is one line of at
// most limit characters, cut at a word and then ended with an ellipsis.
func (t *Text) Snippet(lang, body, query string, limit int) string {
	wanted := map[string]bool{}
	for i, word := range words(query) {
		if i == maxWords {
			break
		}
		for _, form := range t.forms(lang, word) {
			wanted[form] = true
		}
	}
	best, most := "", -1
	for sentence := range sentences(body) {
		if n := t.matches(lang, sentence, wanted); n > most {
			best, most = sentence, n
		}
	}
	return shorten(best, limit)
}

// matches counts the words of the sentence that have a wanted form.
func (t *Text) matches(lang, sentence string, wanted map[string]bool) int {
	if len(wanted) == 0 {
		return 0
	}
	n := 0
	for _, word := range words(sentence) {
		for _, form := range t.forms(lang, word) {
			if wanted[form] {
				n++
				break
			}
		}
	}
	return n
}

// sentences yields the sentences of Markdown text, each on one line and without
// the marks of emphasis and code.
func sentences(body string) func(yield func(string) bool) {
	body = strings.NewReplacer("`", "", "**", "").Replace(body)
	body = strings.Join(strings.Fields(body), " ")
	return func(yield func(string) bool) {
		for body != "" {
			end := strings.Index(body, ". ")
			if end < 0 {
				yield(body)
				return
			}
			if !yield(body[:end+1]) {
				return
			}
			body = body[end+2:]
		}
	}
}

func shorten(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	runes := []rune(s)[:limit-1]
	cut := string(runes)
	if i := strings.LastIndexByte(cut, ' '); i > 0 {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, " ,;:") + "…"
}
