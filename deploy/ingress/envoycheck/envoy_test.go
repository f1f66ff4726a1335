// Package envoycheck holds the test of the configuration for Envoy. It is a
// module of its own, since only this test needs Envoy's messages.
package envoycheck

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3" // for Any
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // for Any
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// parse reads a configuration as Envoy does: a field that it does not know, a
// value of a wrong type or out of its bounds is an error.
func parse(text string) (*bootstrapv3.Bootstrap, *hcmv3.HttpConnectionManager, error) {
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, nil, err
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, nil, err
	}
	config := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, config); err != nil {
		return nil, nil, err
	}
	if err := config.ValidateAll(); err != nil {
		return nil, nil, err
	}
	manager := &hcmv3.HttpConnectionManager{}
	filter := config.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0]
	if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
		return nil, nil, err
	}
	return config, manager, manager.ValidateAll()
}

func TestEnvoyReadsIt(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, manager, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range manager.GetRouteConfig().GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			checkRoute(t, config, route)
		}
	}
	if idle := manager.GetStreamIdleTimeout().AsDuration(); idle.Hours() != 1 || manager.GetRequestTimeout().AsDuration() != 0 {
		t.Errorf("streams are cut: idle %v, request %v", idle, manager.GetRequestTimeout().AsDuration())
	}
	// It is no test if it cannot fail.
	for old, changed := range map[string]string{
		"timeout: 0s": "time_out: 0s", "stat_prefix: millrace": "stat_prefix: ''", "connect_timeout: 2s": "connect_timeout: 2 seconds",
	} {
		if _, _, err := parse(strings.Replace(string(text), old, changed, 1)); err == nil {
			t.Errorf("%q passes", changed)
		}
	}
}

func checkRoute(t *testing.T, config *bootstrapv3.Bootstrap, route *routev3.Route) {
	t.Helper()
	action := route.GetRoute()
	if action.GetTimeout() == nil || action.GetTimeout().AsDuration() != 0 {
		t.Errorf("calls end after %v; nil is 15 s", action.GetTimeout())
	}
	if on := action.GetRetryPolicy().GetRetryOn(); on != "connect-failure,refused-stream" {
		t.Errorf("calls that may have run are made again on %s", on)
	}
	for _, cluster := range config.GetStaticResources().GetClusters() {
		if cluster.GetName() == action.GetCluster() {
			return
		}
	}
	t.Errorf("there is no cluster %s", action.GetCluster())
}
