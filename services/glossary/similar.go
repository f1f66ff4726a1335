package glossary

import (
	"cmp"
	"slices"
)

// similar returns the slugs that differ from name by few letters, nearest
// first: at most one letter in three may be wrong, missing or added.
func similar(name string, slugs []string, most int) []string {
	type candidate struct {
		slug     string
		distance int
	}
	allowed := max(1, (len(name)+1)/3)
	var near []candidate
	for _, slug := range slugs {
		if d := distance(name, slug, allowed); d <= allowed {
			near = append(near, candidate{slug, d})
		}
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(a.distance-b.distance, cmp.Compare(a.slug, b.slug))
	})
	var result []string
	for _, c := range near[:min(most, len(near))] {
		result = append(result, c.slug)
	}
	return result
}

// distance is the Levenshtein distance of two texts in bytes, or some number
// above limit if it is above limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, best := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			substitution := diagonal
			if a[i] != b[j] {
				substitution++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitution, row[j+1]+1, row[j]+1)
			best = min(best, row[j+1])
		}
		if best > limit {
			return limit + 1
		}
	}
	return row[len(b)]
}
