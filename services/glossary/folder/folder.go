// Package folder reads a folder of glossary files: Markdown with a strict YAML
// front matter. A file that does not fit is left out and reported as a Problem
// with its name and line; the files beside it are not affected.
//
// Files below the top-level folder notes are notes, all other *.md files are
// terms. Names that begin with a dot or end with a tilde belong to editors and
// version control and are not looked at.
package folder

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// Extension is how the name of a glossary file ends.
const Extension = ".md"

// DefaultMaxFileBytes is the size limit of one file where none is configured.
const DefaultMaxFileBytes = 1 << 20

// Stamp tells whether a file has changed without reading it.
type Stamp struct {
	Size    int64
	ModTime time.Time
}

// File is one glossary file as it was read. It is never changed afterwards.
type File struct {
	Path  string
	Stamp Stamp
	// Document is nil when the file has problems.
	Document *Document
	Problems []Problem
}

// Problem is a fault in a file that its author can mend.
type Problem struct {
	// File is relative to the folder, with slashes.
	File string `json:"file"`
	// Line counts from 1.
	Line int `json:"line"`
	// Message says what is wrong and what would be right.
	Message string `json:"message"`
}

// String formats the problem as compilers do, so that editors can jump to it.
func (p Problem) String() string {
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message)
}

// Ignored reports whether a path, relative to the folder, is never looked at:
// a part of it is hidden or is an editor's backup.
func Ignored(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part != "." && (strings.HasPrefix(part, ".") || strings.HasSuffix(part, "~")) {
			return true
		}
	}
	return false
}

// IsGlossaryFile reports whether a path names a file that List would return if
// it exists.
func IsGlossaryFile(name string) bool { return !Ignored(name) && path.Ext(name) == Extension }

// List returns the paths of the glossary files below root ("." for all), sorted.
// Parts that cannot be listed become problems; a root that is missing is an
// empty list. Symbolic links to files are followed, to folders they are not.
func List(fsys fs.FS, root string) (paths []string, problems []Problem) {
	fail := func(name string, err error) {
		if !errors.Is(err, fs.ErrNotExist) { // it vanished while we looked
			problems = append(problems, Problem{name, 1, "cannot be read: " + reason(err)})
		}
	}
	walk := func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			fail(name, err)
		case Ignored(name) && entry.IsDir():
			return fs.SkipDir
		case entry.IsDir() || !IsGlossaryFile(name):
		case entry.Type().IsRegular(): // known without asking for each file
			paths = append(paths, name)
		case entry.Type()&fs.ModeSymlink != 0:
			info, err := fs.Stat(fsys, name)
			if err != nil {
				fail(name, err)
			} else if info.Mode().IsRegular() {
				paths = append(paths, name)
			}
		}
		return nil
	}
	// The callback never returns an error other than SkipDir.
	_ = fs.WalkDir(fsys, root, walk)
	slices.Sort(paths)
	return paths, problems
}

// StampOf returns the stamp a file has now.
func StampOf(fsys fs.FS, name string) (Stamp, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{info.Size(), info.ModTime()}, nil
}

// Read reads and parses one file of at most limit bytes. The error is
// fs.ErrNotExist (wrapped) when there is no such file any more; everything else
// that can be wrong is a Problem of the File.
func Read(fsys fs.FS, name string, limit int64) (File, error) {
	file := File{Path: name}
	broken := func(message string) (File, error) {
		file.Problems = []Problem{{name, 1, message}}
		return file, nil
	}
	opened, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if err != nil {
		return broken("cannot be read: " + reason(err))
	}
	defer func() { _ = opened.Close() }() // it was only read
	info, err := opened.Stat()
	if err != nil {
		return broken("cannot be read: " + reason(err))
	}
	// The stamp is taken before the content: a write in between leaves a stamp
	// that is too old, which the next comparison notices.
	file.Stamp = Stamp{info.Size(), info.ModTime()}
	// With room for all of it, an ordinary file is read at once.
	data := bytes.NewBuffer(make([]byte, 0, min(info.Size(), limit)+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(opened, limit+1)); err != nil {
		return broken("cannot be read: " + reason(err))
	}
	if int64(data.Len()) > limit {
		return broken(fmt.Sprintf("is larger than the limit of %d bytes for one file", limit))
	}
	file.Document, file.Problems = Parse(name, data.Bytes())
	return file, nil
}

// reason drops the operation and the path from err: they are said already, and
// the path would tell where the folder lies.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
