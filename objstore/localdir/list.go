package localdir

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/btrlog/btrlog/objstore"
)

// List implements objstore.Store. It reads the directories that the prefix selects and the header of
// every object of the page.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.String(), prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := s.start(ctx, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	w := walker{s: s, ctx: ctx, prefix: prefix, startAfter: startAfter, limit: limit}
	// All matching keys share the directories of the prefix's complete elements.
	dir, base := s.dir, ""
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		base = prefix[:i+1]
		if objstore.CheckKey(prefix[:i]) != nil {
			return objstore.Page{}, nil // no valid key begins like this
		}
		dir = s.dirOf(s.path(base + "x"))
	}
	if err := w.walk(dir, base, true); err != nil {
		return objstore.Page{}, s.err("list", prefix, objstore.ErrUnavailable, err)
	}
	page := objstore.Page{More: len(w.found) > limit}
	if err := s.describe(prefix, w.found[:min(limit, len(w.found))], &page); err != nil {
		return objstore.Page{}, err
	}
	return page, nil
}

type entry struct{ key, path string }

type walker struct {
	s                  *Store
	ctx                context.Context
	prefix, startAfter string
	limit              int
	found              []entry // in key order, at most limit+1 if the walk may stop early
}

func (w *walker) full() bool { return len(w.found) > w.limit }

// walk adds the keys of a directory, all of which begin with base. early allows it to stop when
// the page is full.
func (w *walker) walk(dir, base string, early bool) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	nodes := make([]node, 0, len(entries))
	for _, e := range entries {
		if dir == w.s.dir && strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if n, ok := decodeEntry(base, e.Name(), e.IsDir()); ok && w.wants(n) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.key, b.key) })
	for i := 0; i < len(nodes) && !(early && w.full()); {
		// A continuation directory of element "p…" and the directory of element "p" hold keys
		// that interleave ("p!x", "p/x", "p0x"): nodes whose keys begin with it form a group
		// that is walked whole and sorted.
		j := i + 1
		for nodes[i].cont && j < len(nodes) && strings.HasPrefix(nodes[j].key, nodes[i].key) {
			j++
		}
		from := len(w.found)
		for _, n := range nodes[i:j] {
			if err := w.visit(dir, n, early && j == i+1); err != nil {
				return err
			}
		}
		if j > i+1 {
			slices.SortFunc(w.found[from:], func(a, b entry) int { return cmp.Compare(a.key, b.key) })
		}
		i = j
	}
	return nil
}

func (w *walker) visit(dir string, n node, early bool) error {
	path := filepath.Join(dir, n.name)
	if n.dir {
		return w.walk(path, n.key, early)
	}
	if w.s.owns(n.key, path) {
		w.found = append(w.found, entry{n.key, path})
	}
	return nil
}

// wants says whether the node can contribute to the page.
func (w *walker) wants(n node) bool {
	if !n.dir {
		return strings.HasPrefix(n.key, w.prefix) && n.key > w.startAfter
	}
	overlaps := strings.HasPrefix(n.key, w.prefix) || strings.HasPrefix(w.prefix, n.key)
	passed := w.startAfter >= n.key && !strings.HasPrefix(w.startAfter, n.key)
	return overlaps && !passed
}

// describe fills the page. It reads all headers first and then makes the names durable, one sync
// per directory that has a name not yet known to be: a version that was read before the sync began is on disk after it.
func (s *Store) describe(prefix string, found []entry, page *objstore.Page) error {
	type unsettled struct {
		path    string
		writeID uint64
	}
	fresh := make(map[string][]unsettled) // by directory
	for _, e := range found {
		f, h, err := s.openObject("list", e.key, e.path, false)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			continue // deleted meanwhile
		case errors.Is(err, objstore.ErrDamaged):
			// It is there; Get says what is wrong with it. To leave it out would be to call it absent, and
			// to fail would hide all the others.
			page.Objects = append(page.Objects, objstore.Info{Key: e.key})
			continue
		case err != nil:
			return err
		}
		f.Close()
		if !s.isDurable(e.path, h.writeID) {
			dir := s.dirOf(e.path)
			fresh[dir] = append(fresh[dir], unsettled{e.path, h.writeID})
		}
		info := h.info()
		info.Key, info.Metadata = e.key, nil
		page.Objects = append(page.Objects, info)
	}
	for dir, list := range fresh {
		if err := s.settleDir("list", prefix, dir); err != nil {
			return err
		}
		for _, u := range list {
			s.noteDurable(u.path, u.writeID)
		}
	}
	return nil
}
