package edge

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/mcp"
)

// pages are the pages of the specification with requirements on servers, by
// revision: each has a row in docs/coverage.md.
var pages = map[string][]string{
	"2024-11-05": {"basic/messages", "basic/lifecycle"},
	"2025-03-26": {"basic", "basic/lifecycle"},
	"2025-06-18": {"basic", "basic/lifecycle", "client/elicitation"},
	"2025-11-25": {"basic", "basic/lifecycle", "client/elicitation"},
	"2026-07-28": {
		"basic", "basic/versioning", "basic/transports", "basic/transports/stdio", "basic/transports/streamable-http",
		"basic/patterns", "basic/patterns/cancellation", "basic/patterns/mrtr", "basic/patterns/progress", "basic/patterns/subscriptions",
		"server/discover", "server/utilities/caching", "client/elicitation",
	},
}

// legacyPages are those that every revision with a handshake has.
var legacyPages = []string{"basic/transports", "basic/utilities/cancellation", "basic/utilities/ping", "basic/utilities/progress"}

// commonPages are those that every revision has.
var commonPages = []string{
	"server/tools", "server/resources", "server/prompts", "client/sampling", "client/roots",
	"server/utilities/completion", "server/utilities/logging", "server/utilities/pagination",
}

// TestCoverage reads docs/coverage.md: what shows a requirement exists, every
// conversation shows one, and no page is forgotten.
func TestCoverage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "docs", "coverage.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	shown, covered := map[string]bool{}, map[string]bool{}
	rows := 0
	for line := range strings.SplitSeq(string(raw), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| 2") && !strings.HasPrefix(line, "| all") {
			continue
		}
		rows++
		if len(cells) != 4 {
			t.Errorf("a row of %d cells: %s", len(cells), line)
			continue
		}
		for _, rev := range revisionsOf(t, cells[0]) {
			covered[rev+" "+cells[1]] = true
		}
		if strings.HasPrefix(cells[3], "later: ") {
			continue
		}
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("nothing shows it: %s", line)
		}
		for _, n := range names {
			shown[n[1]] = true
			if !tests[n[1]] {
				t.Errorf("%s is no conversation and no test: %s", n[1], line)
			}
		}
	}
	if rows < 100 {
		t.Errorf("the table has %d rows", rows)
	}
	for name := range tests {
		if strings.Contains(name, "/") && !shown[name] {
			t.Errorf("the conversation %s shows no requirement", name)
		}
	}
	for _, rev := range mcp.Supported() {
		wanted := slices.Concat(pages[rev], commonPages)
		if row, _ := mcp.Lookup(rev); !row.Modern {
			wanted = slices.Concat(wanted, legacyPages)
		}
		for _, page := range wanted {
			if !covered[rev+" "+page] {
				t.Errorf("no row about %s of %s", page, rev)
			}
		}
	}
}

// revisionsOf reads "all", "A to B" or "A, B".
func revisionsOf(t *testing.T, cell string) []string {
	t.Helper()
	dates := mcp.Supported()
	slices.Sort(dates)
	if cell == "all" {
		return dates
	}
	if from, to, ok := strings.Cut(cell, " to "); ok {
		i, j := slices.Index(dates, from), slices.Index(dates, to)
		if i < 0 || j < i {
			t.Errorf("%q is no range of revisions", cell)
			return nil
		}
		return dates[i : j+1]
	}
	list := strings.Split(cell, ", ")
	for _, date := range list {
		if !slices.Contains(dates, date) {
			t.Errorf("%q is no list of revisions", cell)
		}
	}
	return list
}

// testNames are the names of the tests of the repository and, as era/name, of
// the conversations.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, folder := range []string{".", filepath.Join("..", "worker")} {
		err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name, ok := strings.CutSuffix(path, ".txtar"); ok {
				names[filepath.ToSlash(strings.TrimPrefix(name, "testdata"+string(filepath.Separator)))] = true
			}
			if !strings.HasSuffix(path, "_test.go") {
				return nil
			}
			source, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}
