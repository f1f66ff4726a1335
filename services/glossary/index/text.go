package index

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/blevesearch/bleve/v2/analysis"
	"github.com/blevesearch/bleve/v2/analysis/lang/en"
	"github.com/blevesearch/bleve/v2/analysis/lang/pl"
	"golang.org/x/text/unicode/norm"
)

// Languages that can be analysed.
const (
	english = "en"
	polish  = "pl"
)

// Text turns text into the terms it is found by. It is safe for concurrent use,
// and worth sharing: the Polish stemmer is a table of some megabytes.
//
// Every word becomes up to three terms, all without diacritics: the word as it
// is, its stem by the stemmer of the language, and for Polish the word without
// its common endings. The Polish stemmer is a trained table that expects
// correct diacritics ("łączności", not "lacznosci") and is erratic about words
// it was not trained on ("kolejce", "agentami"); the endings are cut after the
// diacritics are gone and so treat both spellings, and alternations such as
// zasób and zasobu, alike. A word that matches as it is matches by all of its
// terms and so ranks first.
type Text struct {
	stemmers map[string]analysis.TokenFilter
	stops    map[string]analysis.TokenMap
	// cache has the forms of words seen before, by cacheKey: texts repeat their
	// words, and finding the forms is most of the work of indexing.
	cache sync.Map
	room  atomic.Int64 // how many more words the cache takes
}

type cacheKey struct{ lang, word string }

// cacheSize bounds the cache: about ten megabytes when it is full.
const cacheSize = 1 << 16

// NewText loads the stemmers and stop words.
func NewText() (*Text, error) {
	stemmer, err := pl.NewPolishStemmerFilter()
	if err != nil {
		return nil, err
	}
	t := &Text{
		stemmers: map[string]analysis.TokenFilter{english: en.NewEnglishStemmerFilter(), polish: stemmer},
		stops:    map[string]analysis.TokenMap{},
	}
	t.room.Store(cacheSize)
	for lang, words := range map[string][]byte{english: en.EnglishStopWords, polish: pl.PolishStopWords} {
		listed := analysis.NewTokenMap()
		if err := listed.LoadBytes(words); err != nil {
			return nil, err
		}
		folded := analysis.NewTokenMap()
		for word := range listed {
			folded.AddToken(Fold(word))
		}
		t.stops[lang] = folded
	}
	// Polish texts about software are full of English names. The other way
	// round it would hurt: "ten" and "go" are Polish stop words.
	for word := range t.stops[english] {
		t.stops[polish].AddToken(word)
	}
	return t, nil
}

// Fold returns s in lower case and without diacritics.
func Fold(s string) string {
	lower := strings.ToLower(s)
	if isASCII(lower) {
		return lower
	}
	var b strings.Builder
	b.Grow(len(lower))
	for _, r := range norm.NFD.String(lower) {
		switch {
		case unicode.Is(unicode.Mn, r): // the accent of a decomposed letter
		case r == 'ł': // the letters below have no decomposition
			b.WriteByte('l')
		case r == 'đ':
			b.WriteByte('d')
		case r == 'ø':
			b.WriteByte('o')
		case r == 'ß':
			b.WriteString("ss")
		case r == 'æ':
			b.WriteString("ae")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Fingerprint reduces a slug, title or alias to what its spellings have in
// common: "Agent readiness", "agent_readiness" and "AGENT-READINESS" are equal.
func Fingerprint(s string) string {
	return strings.Join(strings.FieldsFunc(Fold(s), separates), " ")
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func separates(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.Mn, r)
}

// words returns the words of s in lower case and composed form. The possessive
// ending of English goes with the apostrophe; in Polish an apostrophe begins an
// ending too ("Joule'a").
func words(s string) []string {
	s = strings.ToLower(norm.NFC.String(s))
	fields := strings.FieldsFunc(s, func(r rune) bool { return separates(r) && r != '\'' && r != '’' })
	kept := fields[:0]
	for _, word := range fields {
		word = strings.Trim(word, "'’")
		if i := strings.IndexAny(word, "'’"); i > 0 {
			word = word[:i]
		}
		if word != "" {
			kept = append(kept, word)
		}
	}
	return kept
}

// forms returns the different terms of one word, the word itself first; none
// when it is a stop word of the language. The slice must not be changed.
func (t *Text) forms(lang, word string) []string {
	key := cacheKey{lang, word}
	if known, ok := t.cache.Load(key); ok {
		return known.([]string)
	}
	forms := t.findForms(lang, word)
	if t.room.Load() > 0 {
		t.room.Add(-1)
		key.word = strings.Clone(word) // not the whole text it is a part of
		t.cache.Store(key, forms)
	}
	return forms
}

func (t *Text) findForms(lang, word string) []string {
	plain := strings.Clone(Fold(word))
	if t.stops[lang][plain] {
		return nil
	}
	forms := make([]string, 1, 3)
	forms[0] = plain
	add := func(form string) {
		if !slices.Contains(forms, form) {
			forms = append(forms, form)
		}
	}
	if stem := t.stem(lang, word); akin(plain, stem) {
		add(stem)
	}
	if lang == polish {
		add(cutEnding(plain))
	}
	return forms
}

func (t *Text) stem(lang, word string) string {
	stream := t.stemmers[lang].Filter(analysis.TokenStream{{Term: []byte(word)}})
	return Fold(string(stream[0].Term))
}

// akin refuses what the Polish table gets wrong: stems of less than three
// letters, and stems that do not begin like the word.
func akin(word, stem string) bool {
	return len(stem) >= 3 && len(word) >= 3 && word[:3] == stem[:3]
}

// Endings of Polish without diacritics, in the order they are tried: the first
// that leaves enough of the word is cut. What verbs share with the nouns and
// adjectives made of them (anulować, anulowanie, anulowany) must leave more
// letters, or it would cut into short stems.
const (
	owacEndings = "owaniami owaniach owaniem owania owaniu owanie owan " +
		"owanego owanych owanymi owanym owanej owany owana owane owano owac"
	owacRest      = 4
	verbalEndings = "aniami aniach aniem ania aniu anie an ac " +
		"eniami eniach eniem enia eniu enie en ic yc"
	verbalRest     = 5
	nominalEndings = "iejszych iejszymi iejszego iejszy iejsza iejsze " +
		"iami iach iego iemu iech ymi imi ami ach ego emu owi iom " +
		"iem iej ych ich ow om em ej ym im ie ia io iu a e i o u y"
	nominalRest = 3
)

// cutEnding cuts one ending from a folded Polish word.
func cutEnding(word string) string {
	if stem, ok := cut(word, owacEndings, owacRest); ok {
		return stem
	}
	if stem, ok := cut(word, verbalEndings, verbalRest); ok {
		return stem
	}
	stem, _ := cut(word, nominalEndings, nominalRest)
	return stem
}

// cut returns word without the first of the endings that it has and that leaves
// so many letters.
func cut(word, endings string, rest int) (stem string, ok bool) {
	for ending := range strings.SplitSeq(endings, " ") {
		if len(word) >= len(ending)+rest && strings.HasSuffix(word, ending) {
			return word[:len(word)-len(ending)], true
		}
	}
	return word, false
}

// analyzer lets bleve see a field as Text does.
type analyzer struct {
	text *Text
	lang string
}

// Analyze implements analysis.Analyzer. All terms of a word share its position.
func (a analyzer) Analyze(input []byte) analysis.TokenStream {
	words := words(string(input))
	stream := make(analysis.TokenStream, 0, 2*len(words))
	for i, word := range words {
		for _, form := range a.text.forms(a.lang, word) {
			stream = append(stream, &analysis.Token{Term: []byte(form), Position: i + 1})
		}
	}
	return stream
}
