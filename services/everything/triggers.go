package everything

import (
	"context"
	"strings"
	"sync"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// topicExtras is how instances tell each other what a trigger has changed:
// instances of one version have to offer the same.
const topicExtras bus.Topic = "everything"

// extra is something that a trigger adds, or removes when it is there.
type extra struct {
	kind, name  string
	add, remove func(name string)
	there       bool // guarded by extras.mu
}

// extras are what the triggers have added to this instance.
type extras struct {
	mu sync.Mutex
	// announce tells the other instances; nil: there are none.
	announce func(payload []byte) error
	all      map[string]*extra // by kind
}

// share hears what other instances have changed until stop is called.
func (x *extras) share(conn *bus.Conn) (stop func(), err error) {
	client := bus.NewClient(conn, bus.ClientConfig{})
	x.mu.Lock()
	x.announce = func(payload []byte) error { return client.Announce(topicExtras, payload) }
	x.mu.Unlock()
	return client.Hear(topicExtras, func(payload []byte) {
		kind, state, _ := strings.Cut(string(payload), " ")
		if e := x.all[kind]; e != nil {
			x.set(e, func(bool) bool { return state == "there" })
		}
	})
}

// set makes an extra be there or not, and returns what it is now.
func (x *extras) set(e *extra, wanted func(there bool) bool) (there bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if there = wanted(e.there); there == e.there {
		return there
	}
	e.there = there
	if there {
		e.add(e.name)
	} else {
		e.remove(e.name)
	}
	return there
}

// toggle changes an extra in every instance.
func (x *extras) toggle(e *extra) (there bool, err error) {
	there = x.set(e, func(there bool) bool { return !there })
	x.mu.Lock()
	announce := x.announce
	x.mu.Unlock()
	if announce == nil {
		return there, nil
	}
	state := "away"
	if there {
		state = "there"
	}
	return there, announce([]byte(e.kind + " " + state))
}

// addTriggers adds the tools that change what the worker offers.
func (e *Everything) addTriggers() {
	e.extras.all = map[string]*extra{}
	for _, x := range []*extra{
		{
			kind: "tool", name: "test_dynamic_tool", remove: e.worker.RemoveTool,
			add: func(name string) {
				worker.AddTool(e.worker, worker.Tool{Name: name, Description: "Is here for a while."}, showing(worker.Text("Still here.")))
			},
		},
		{
			kind: "prompt", name: "test_dynamic_prompt", remove: e.worker.RemovePrompt,
			add: func(name string) {
				e.worker.AddPrompt(worker.Prompt{Name: name, Description: "Is here for a while."}, saying("Still here."))
			},
		},
		{
			kind: "resource", name: "test://dynamic-resource", remove: e.worker.RemoveResource,
			add: func(uri string) {
				e.worker.AddResource(worker.Resource{URI: uri, Name: "dynamic-resource", MIMEType: "text/plain", Description: "Is here for a while."},
					func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
						return worker.TextContents("", "Still here."), nil
					})
			},
		},
	} {
		e.extras.all[x.kind] = x
		worker.AddTool(e.worker, worker.Tool{
			Name: "test_trigger_" + x.kind + "_change", Description: "Adds a " + x.kind + ", or removes it again.",
		}, func(context.Context, *worker.Call, none) (string, error) {
			there, err := e.extras.toggle(x)
			if err != nil {
				return "", err
			}
			if there {
				return "Added " + x.name + ".", nil
			}
			return "Removed " + x.name + ".", nil
		})
	}
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_trigger_resource_update", Description: "Tells subscribers that test://watched-resource has changed.",
	}, func(context.Context, *worker.Call, none) (string, error) {
		e.worker.ResourceUpdated(watchedURI)
		return "Announced an update of " + watchedURI + ".", nil
	})
}
