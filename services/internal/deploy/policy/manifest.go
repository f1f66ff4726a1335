package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// object is a part of a manifest; what is absent reads as empty.
type object map[string]any

func (o object) object(path ...string) object {
	for _, name := range path {
		next, _ := o[name].(map[string]any)
		o = next
	}
	return o
}

func (o object) objects(name string) (found []object) {
	items, _ := o[name].([]any)
	for _, item := range items {
		if o, ok := item.(map[string]any); ok {
			found = append(found, o)
		}
	}
	return found
}

func (o object) text(name string) string {
	if o[name] == nil {
		return ""
	}
	return fmt.Sprint(o[name])
}

func (o object) number(name string) int { n, _ := o[name].(int); return n }
func (o object) is(name string) bool    { b, _ := o[name].(bool); return b }

// isNot reports whether false is written there; absent is not enough.
func (o object) isNot(name string) bool { b, ok := o[name].(bool); return ok && !b }

func (o object) name() string {
	return o.text("kind") + " " + o.object("metadata").text("name")
}

func (o object) labels() object { return o.object("metadata", "labels") }

// manifests are all objects of an installation.
type manifests struct {
	list       []object
	drainGrace time.Duration
}

func parse(text []byte) (*manifests, error) {
	all := &manifests{}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document map[string]any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if document != nil {
			all.list = append(all.list, document)
		}
	}
}

func (m *manifests) kind(kinds ...string) (found []object) {
	for _, o := range m.list {
		if slices.Contains(kinds, o.text("kind")) {
			found = append(found, o)
		}
	}
	return found
}

// pod is the template of the pods of an object.
type pod struct {
	owner    object
	template object
}

func (p pod) spec() object { return p.template.object("spec") }
func (p pod) containers() []object {
	return append(p.spec().objects("initContainers"), p.spec().objects("containers")...)
}
func (p pod) component() string { return p.template.labels().text("app.kubernetes.io/component") }

func (m *manifests) pods() (found []pod) {
	for _, o := range m.list {
		switch o.text("kind") {
		case "Pod":
			found = append(found, pod{o, o})
		case "CronJob":
			found = append(found, pod{o, o.object("spec", "jobTemplate", "spec", "template")})
		default:
			if template := o.object("spec", "template"); len(template.object("spec").objects("containers")) > 0 {
				found = append(found, pod{o, template})
			}
		}
	}
	return found
}

// selected returns the pods that have all labels.
func (m *manifests) selected(labels object) (found []pod) {
	for _, p := range m.pods() {
		own := p.template.labels()
		if !slices.ContainsFunc(slices.Collect(maps.Keys(labels)), func(key string) bool { return own.text(key) != labels.text(key) }) {
			found = append(found, p)
		}
	}
	return found
}

// findings are what all rules have to say.
func (m *manifests) findings() (found []string) {
	for _, r := range rules() {
		r.check(m, func(format string, args ...any) {
			found = append(found, r.name+": "+fmt.Sprintf(format, args...)+" ("+r.why+")")
		})
	}
	return found
}

// mebibytes reads a quantity of memory.
func mebibytes(quantity string) (float64, error) {
	units := map[string]float64{"": 1. / (1 << 20), "Ki": 1. / (1 << 10), "KiB": 1. / (1 << 10), "Mi": 1, "MiB": 1, "Gi": 1 << 10, "GiB": 1 << 10}
	number := strings.TrimRight(quantity, "KMGiB")
	unit, ok := units[quantity[len(number):]]
	var n float64
	if _, err := fmt.Sscan(number, &n); err != nil || !ok {
		return 0, fmt.Errorf("%q is no quantity of memory", quantity)
	}
	return n * unit, nil
}
