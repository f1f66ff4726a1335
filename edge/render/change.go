package render

import (
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/notify"
)

// Change writes the notification of a change. subscription is the raw id of the
// subscriptions/listen request that it belongs to; nil in the legacy era.
func Change(ev notify.Event, subscription []byte) []byte {
	params := newObject(128 + len(ev.URI))
	params.subscription(subscription)
	method := mcp.NotificationToolsChanged
	switch ev.Kind {
	case notify.PromptsChanged:
		method = mcp.NotificationPromptsChanged
	case notify.ResourcesChanged:
		method = mcp.NotificationResourcesChanged
	case notify.ResourceUpdated:
		method = mcp.NotificationResourceUpdated
		params.string("uri", ev.URI)
	case notify.ElicitationComplete:
		method = mcp.NotificationElicitationComplete
		params.string(keyElicitationID, ev.Elicitation)
	case notify.ToolsChanged:
	}
	if !params.begun {
		return jsonrpc.AppendNotification(nil, method, nil)
	}
	return jsonrpc.AppendNotification(nil, method, params.end())
}

// subscription adds the _meta that ties a message to its subscription (basic/
// patterns/subscriptions, "Receiving Notifications").
func (o *object) subscription(id []byte) {
	if id == nil {
		return
	}
	meta := newObject(64 + len(id))
	meta.raw(mcp.MetaSubscriptionID, id)
	o.raw("_meta", meta.end())
}

// Acknowledged writes the first message of a subscription; agreed is the filter
// that the server honours, a JSON object.
func Acknowledged(subscription, agreed []byte) []byte {
	params := newObject(128 + len(agreed))
	params.subscription(subscription)
	params.raw("notifications", agreed)
	return jsonrpc.AppendNotification(nil, mcp.NotificationAcknowledged, params.end())
}

// Cancelled writes the notification that a subscription is torn down (basic/
// patterns/cancellation: a server MUST send it).
func Cancelled(subscription []byte, reason string) []byte {
	params := newObject(128 + len(reason))
	params.subscription(subscription)
	params.raw("requestId", subscription)
	params.string("reason", reason)
	return jsonrpc.AppendNotification(nil, mcp.NotificationCancelled, params.end())
}

// SubscriptionEnded writes the result that ends a subscription well (basic/
// patterns/subscriptions, "Graceful Closure").
func (r *Renderer) SubscriptionEnded(rev *mcp.Revision, subscription []byte) []byte {
	meta := newObject(64 + len(subscription))
	meta.raw(mcp.MetaSubscriptionID, subscription)
	return r.begin(rev, meta.end(), 0).end()
}
