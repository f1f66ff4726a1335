package library_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// large is how many terms a large folder has.
const large = 20_000

// generate writes n terms in both languages by turns, each with a body of its
// own of some thirty words and a unique name.
func generate(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	vocabulary := map[string][]string{
		"en": strings.Fields("session stream worker queue token budget model context window agent tool result schema " +
			"progress cancel resource memory server client header retry deadline cluster message subject reply"),
		"pl": strings.Fields("sesja strumień kolejka żeton budżet modelu kontekstu okno agenta narzędzie wynik schemat " +
			"postęp anulowanie zasób pamięć serwera klient nagłówek powtórzenie termin klastra komunikat łączność źródło odpowiedź"),
	}
	for i := range n {
		folder := filepath.Join(dir, "terms", fmt.Sprintf("%02d", i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		lang := []string{"en", "pl"}[i%2]
		words := vocabulary[lang]
		var body strings.Builder
		for j := range 30 {
			body.WriteString(words[(i*7+j*j*3+j)%len(words)])
			body.WriteByte(" .\n"[min(j%10/9, 1)])
		}
		slug := fmt.Sprintf("term-%05d", i)
		content := term(slug, lang, fmt.Sprintf("Term %05d unique%d", i, i), body.String())
		if err := os.WriteFile(filepath.Join(folder, slug+".md"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLarge(t *testing.T) {
	t.Parallel()
	dir := generate(t, large)
	l := run(t, dir)
	if n := len(l.View().Terms()); n != large {
		t.Fatalf("%d terms, want %d; problems: %v", n, large, l.View().Problems())
	}

	t.Run("rebuild", func(t *testing.T) {
		var reports []int
		before := l.View()
		view, err := l.Rebuild(context.Background(), func(done, total int) {
			if total != large {
				t.Errorf("total %d, want %d", total, large)
			}
			reports = append(reports, done)
		})
		if err != nil {
			t.Fatal(err)
		}
		if view == before || l.View() != view {
			t.Error("the new view is not served")
		}
		if len(reports) < 50 || reports[len(reports)-1] != large {
			t.Errorf("progress %v, want at least 50 reports up to %d", reports, large)
		}
		for i := 1; i < len(reports); i++ {
			if reports[i] <= reports[i-1] {
				t.Fatalf("progress does not grow: %v", reports)
			}
		}
		if found := search(t, l, "unique12345"); len(found) != 1 || found[0].Slug != "term-12345" {
			t.Errorf("found %v", found)
		}
	})

	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		before := l.View()
		reached := 0
		view, err := l.Rebuild(ctx, func(done, total int) {
			reached = done
			if done > large/10 {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) || view != nil {
			t.Fatalf("a cancelled rebuild returned %v, %v", view, err)
		}
		if reached > large/5 {
			t.Errorf("it went on to %d files", reached)
		}
		if l.View() != before {
			t.Error("the old view is not served any more")
		}
		if found := search(t, l, "unique777"); len(found) != 1 {
			t.Errorf("the old index does not answer: %v", found)
		}
	})

	t.Run("edit", func(t *testing.T) {
		write(t, dir, "terms/03/term-03003.md", term("term-03003", "pl", "Nowa nazwa", "Tekst po zmianie."))
		eventually(t, l, "the edit of one of many files", title("term-03003", "Nowa nazwa"))
		if found := search(t, l, "nowej nazwy"); len(found) == 0 || found[0].Slug != "term-03003" {
			t.Errorf("found %v", found)
		}
	})
}

func BenchmarkSearchLarge(b *testing.B) {
	l := run(b, generate(b, large))
	queries := []string{"unique12345", "session window agents", "anulowanie strumieni i sesji klienta"}
	for i := 0; b.Loop(); i++ {
		if len(search(b, l, queries[i%len(queries)])) == 0 {
			b.Fatal("nothing found")
		}
	}
}
