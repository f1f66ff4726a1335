// Package glossary is a dictionary as a worker: terms and notes in Markdown
// files, found by ranked full-text search in Polish and English, read as tools
// or as resources, and followed while the files are edited.
//
// The packages below it do one thing each: folder reads and checks the files,
// index searches them, watch tells when they change, and library keeps the
// three together. This package gives them to clients.
package glossary

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/services/glossary/library"
	"github.com/millrace/millrace/services/glossary/watch"
	"github.com/millrace/millrace/worker"
)

// Pool is the name all instances of the glossary share.
const Pool = "glossary"

// embedded is what is served when no folder is given.
//
//go:embed content
var embedded embed.FS

// Config describes a glossary. The zero value serves the embedded content.
type Config struct {
	// Dir is the folder with the files; empty: the embedded content.
	Dir string
	// Version of the worker, as in worker.Config. Default "0.0.0".
	Version string
	// Slots is how many calls run at the same time, as in worker.Config.
	Slots int
	// Grace is how long running calls may go on after Run was told to stop, as
	// in worker.Config.
	Grace time.Duration
	// MaxFileBytes limits the size of one file. Default 1 MiB.
	MaxFileBytes int64
	// PollOnly finds changes by comparing the files twice a second instead of
	// waiting for the notifications of the file system, which network mounts
	// often lack.
	PollOnly bool
	// Development is as in worker.Config.
	Development bool
	// Logger takes problems of the files. Nil: discarded.
	Logger *slog.Logger
}

// Glossary is an actor: Run serves it.
type Glossary struct {
	log       *slog.Logger
	library   *library.Library
	worker    *worker.Worker
	resources *resources
	ready     chan struct{} // closed by Run when calls are taken
}

// New returns a glossary. It fails if Config.Dir is no folder, so that a typing
// error is noticed before anything starts; files are read by Run.
func New(cfg Config) (*Glossary, error) {
	logger := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	var files fs.FS
	if cfg.Dir == "" {
		content, err := fs.Sub(embedded, "content")
		if err != nil {
			return nil, fmt.Errorf("glossary: %w", err)
		}
		files = content
	} else {
		info, err := os.Stat(cfg.Dir)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a folder", cfg.Dir)
		}
		if err != nil {
			return nil, fmt.Errorf("glossary: %w", err)
		}
		files = os.DirFS(cfg.Dir)
	}
	g := &Glossary{
		log:   logger,
		ready: make(chan struct{}),
		worker: worker.New(worker.Config{
			Pool:         Pool,
			Version:      cmp.Or(cfg.Version, "0.0.0"),
			Title:        "Glossary",
			Instructions: instructions,
			Slots:        cfg.Slots,
			Grace:        cfg.Grace,
			Development:  cfg.Development,
			Logger:       logger,
		}),
	}
	var err error
	g.library, err = library.New(library.Config{
		FS:           files,
		Watch:        watch.Config{Root: cfg.Dir, PollOnly: cfg.PollOnly, Logger: logger},
		MaxFileBytes: cfg.MaxFileBytes,
		Logger:       logger,
		OnChange:     func(view *library.View) { g.resources.update(view) },
	})
	if err != nil {
		return nil, fmt.Errorf("glossary: %w", err)
	}
	g.resources = newResources(g.library, g.worker)
	g.addTools()
	return g, nil
}

// instructions tell a model what this worker is for.
const instructions = "The glossary explains terms of agents and the Model Context Protocol in English and Polish. " +
	"Find terms with search_term, read one with get_term or as the resource term://{slug}."

// Ready returns a channel that is closed when the glossary takes calls.
func (g *Glossary) Ready() <-chan struct{} { return g.ready }

// Worker returns the worker, for who measures it: before Run it may be given
// middleware.
func (g *Glossary) Worker() *worker.Worker { return g.worker }

// Run reads the files and serves them on conn until ctx is done; then it lets
// running calls end, as worker.Run does, and returns nil. Everything it started
// has stopped when it returns. A glossary can be run once.
func (g *Glossary) Run(ctx context.Context, conn *bus.Conn) error {
	// The library goes on while running calls end, and stops after them.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	var started sync.WaitGroup
	var libraryErr error
	started.Go(func() {
		defer stopServing() // nothing can be served without it
		libraryErr = g.library.Run(reading)
	})
	err := g.serve(serving, conn)
	stopReading()
	started.Wait()
	if libraryErr != nil {
		return fmt.Errorf("glossary: %w", libraryErr)
	}
	return err
}

// serve runs the worker once the files have been read.
func (g *Glossary) serve(ctx context.Context, conn *bus.Conn) error {
	select {
	case <-g.library.Ready():
	case <-ctx.Done():
		return nil
	}
	var announced sync.WaitGroup
	defer announced.Wait()
	ended, end := context.WithCancel(ctx)
	defer end()
	announced.Go(func() {
		select {
		case <-g.worker.Ready():
			close(g.ready)
		case <-ended.Done():
		}
	})
	return g.worker.Run(ctx, conn)
}
