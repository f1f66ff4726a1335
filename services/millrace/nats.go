package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/services/devcluster"
)

// natsCmd runs one NATS node.
type natsCmd struct {
	measureFlags
	Name          string   `default:"millrace-1" help:"Name of the node, unique in its cluster."`
	Listen        string   `default:"127.0.0.1:4222" help:"Address for edges and workers."`
	Data          string   `placeholder:"DIR" help:"Folder of what JetStream stores; without it a temporary one that ends with the node."`
	ClusterListen string   `placeholder:"ADDR" help:"Address for the other nodes; without it the node stands alone."`
	Route         []string `placeholder:"ADDR" help:"Address of a node of the cluster; repeat for all of them, since they are counted."`
}

// Run runs the node until a signal comes.
func (c *natsCmd) Run(ctx context.Context, a *app) error {
	m, err := c.measure(ctx, a, "millrace-nats")
	if err != nil {
		return err
	}
	defer m.close()
	server, err := localnats.Start(localnats.Config{
		Name: c.Name, Listen: c.Listen, DataDir: c.Data, JetStream: true,
		ClusterListen: c.ClusterListen, Routes: c.Route, Logger: a.log,
	})
	if err != nil {
		return err
	}
	m.AddPart("nats", func() (bool, string) { return server.JetStreamReady(), "JetStream has no leader yet" })
	p := m.newProcess(ctx, a)
	p.add(actor{"storage", func(ctx context.Context) error {
		if err := awaitJetStream(ctx, server); err != nil {
			return err
		}
		a.log.Info(devcluster.MessageNATS, "url", server.ClientURL())
		<-ctx.Done()
		return nil
	}}, actor{"nats", server.Run}, m.actor(a))
	return p.run()
}

// awaitJetStream waits until JetStream answers: in a cluster its nodes have to
// find each other first.
func awaitJetStream(ctx context.Context, server *localnats.Server) error {
	limit := time.NewTimer(readyTimeout)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond) // the server tells nobody
	defer tick.Stop()
	for !server.JetStreamReady() {
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("the nodes have not agreed on a leader within %v", readyTimeout)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
