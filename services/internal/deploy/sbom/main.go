// Command sbom writes what a Go binary is built from as a CycloneDX 1.5 document:
//
//	sbom BINARY VERSION REVISION
//
// It reads what the Go linker wrote into the binary, so it lists what is really
// in there, and not what a go.mod allows. The document has no time and no random
// serial number: the same binary gives the same document.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// document is a bill of materials; the names are those of CycloneDX.
type document struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Licenses   []license  `json:"licenses,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type license struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

func run(args []string, w io.Writer) error {
	if len(args) != 3 {
		return errors.New("want BINARY VERSION REVISION")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(materials(info, args[1], args[2]))
}

// materials lists the modules of a binary and the standard library.
func materials(info *debug.BuildInfo, version, revision string) document {
	own := component{
		Type: "application", Ref: purl(info.Main.Path, version), Name: info.Main.Path, Version: version, PURL: purl(info.Main.Path, version),
		Licenses:   make([]license, 1),
		Properties: []property{{"millrace:revision", revision}},
	}
	own.Licenses[0].License.ID = "Apache-2.0"
	for _, setting := range info.Settings {
		switch setting.Key {
		case "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED":
			own.Properties = append(own.Properties, property{"go:" + setting.Key, setting.Value})
		}
	}
	parts := []component{library("std", info.GoVersion, "")}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		parts = append(parts, library(module.Path, module.Version, module.Sum))
	}
	refs := make([]string, len(parts))
	for i, part := range parts {
		refs[i] = part.Ref
	}
	return document{
		Format: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata: metadata{own}, Components: parts, Dependencies: []dependency{{own.Ref, refs}},
	}
}

// library is a module. Its sum is the hash that go.sum has for it, which is none
// of the file's and so no hash of CycloneDX.
func library(path, version, sum string) component {
	c := component{Type: "library", Ref: purl(path, version), Name: path, Version: version, PURL: purl(path, version)}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}

func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
