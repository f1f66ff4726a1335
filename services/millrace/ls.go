package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/mcp"
)

// lsCmd shows what is there.
type lsCmd struct {
	serverFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// listing is what ls shows.
type listing struct {
	Instances []instance `json:"instances,omitempty"`
	Tools     []entry    `json:"tools"`
	Resources []entry    `json:"resources"`
	Templates []entry    `json:"resourceTemplates"`
	Problems  []problem  `json:"problems,omitempty"`
}

// instance is one running worker.
type instance struct {
	Pool     string `json:"pool"`
	Instance string `json:"instance"`
	Version  string `json:"version"`
	State    string `json:"state"`
	Used     int    `json:"used"`
	Slots    int    `json:"slots"`
}

// entry is one item clients see.
type entry struct {
	Name  string `json:"name"`
	Pool  string `json:"pool,omitempty"`
	About string `json:"about,omitempty"`
}

// problem is an item that is announced but not offered, or only by another name.
type problem struct {
	Pool      string `json:"pool"`
	Item      string `json:"item"`
	Reason    string `json:"reason"`
	Conflict  bool   `json:"conflict,omitempty"`
	OfferedAs string `json:"offeredAs,omitempty"`
}

// Run lists.
func (c *lsCmd) Run(ctx context.Context, a *app) error {
	return c.withEdge(ctx, a, func(ctx context.Context, cl *client, e *edge.Edge) error {
		l := &listing{}
		for _, part := range []struct {
			method, member, key string
			to                  *[]entry
		}{
			{mcp.MethodToolsList, "tools", "name", &l.Tools},
			{mcp.MethodResourcesList, "resources", "uri", &l.Resources},
			{mcp.MethodResourceTemplatesList, "resourceTemplates", "uriTemplate", &l.Templates},
		} {
			items, err := cl.list(ctx, part.method, part.member)
			if err != nil {
				return err
			}
			*part.to = []entry{}
			for _, raw := range items {
				*part.to = append(*part.to, newEntry(raw, part.key))
			}
		}
		if e != nil {
			l.cluster(e)
		}
		if c.JSON {
			enc := json.NewEncoder(a.stdout)
			enc.SetIndent("", "  ")
			return enc.Encode(l)
		}
		return l.print(a.stdout)
	})
}

func newEntry(raw json.RawMessage, key string) entry {
	var item map[string]any
	if err := json.Unmarshal(raw, &item); err != nil {
		return entry{Name: string(raw)}
	}
	name, _ := item[key].(string)
	about, _ := item["description"].(string)
	if title, ok := item["title"].(string); ok && about == "" {
		about = title
	}
	about, _, _ = strings.Cut(about, "\n")
	return entry{Name: name, About: about}
}

// cluster adds what only the cluster itself knows.
func (l *listing) cluster(e *edge.Edge) {
	for _, m := range e.Members() {
		if m.Pool == "" {
			continue
		}
		state := "ready"
		if m.Draining {
			state = "draining"
		}
		l.Instances = append(l.Instances, instance{m.Pool, m.Instance, m.Version, state, m.Used, m.Slots})
	}
	s := e.Catalog().Snapshot()
	pools := map[string]string{}
	for i := range s.Tools {
		pools[s.Tools[i].Name] = s.Tools[i].Pool
	}
	for i := range l.Tools {
		l.Tools[i].Pool = pools[l.Tools[i].Name]
	}
	for _, p := range s.Problems {
		l.Problems = append(l.Problems, problem{p.Pool, p.Item, p.Reason, p.Conflict, p.As})
	}
}

func (l *listing) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		_, _ = fmt.Fprintln(t, strings.Join(cells, "\t")) // Flush reports the error
	}
	if l.Instances != nil {
		row("POOL", "INSTANCE", "VERSION", "STATE", "SLOTS")
		for _, i := range l.Instances {
			row(i.Pool, i.Instance, i.Version, i.State, fmt.Sprintf("%d/%d", i.Used, i.Slots))
		}
		row()
	}
	section := func(title string, entries []entry) {
		row(title, "POOL", "ABOUT")
		for _, e := range entries {
			pool := e.Pool
			if pool == "" {
				pool = "-"
			}
			row(e.Name, pool, e.About)
		}
	}
	section("TOOL", l.Tools)
	row()
	section("RESOURCE", l.Resources)
	row()
	section("RESOURCE TEMPLATE", l.Templates)
	if l.Problems != nil {
		row()
		row("PROBLEM", "POOL", "OFFERED AS", "REASON")
		for _, p := range l.Problems {
			row(p.Item, p.Pool, cmp.Or(p.OfferedAs, "-"), p.Reason)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the list: %w", err)
	}
	return nil
}
