package localdir

import (
	"net/url"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/btrlog/btrlog/objstore"
)

// How a key becomes a path. The last element of the key is the file's name; every other one
// becomes a directory with the suffix ".d", so that "a" and "a/b" can both exist. In an element
//
//   - "%", a leading ".", and the "." of a final ".d" are written %25 and %2E;
//   - what exceeds nameBytes is cut into directories with the suffix "%+", because file
//     systems take 255 bytes per name and a key's element may have 1024.
//
// Names with a leading dot in the store's directory are the store's own.
const (
	nameBytes  = 200
	dirSuffix  = ".d"
	contSuffix = "%+"
)

// path returns the file of a valid key.
func (s *Store) path(key string) string {
	elems := strings.Split(key, "/")
	parts := []string{s.dir}
	for i, e := range elems {
		cont, last := encodeElement(e)
		parts = append(parts, cont...)
		if i < len(elems)-1 {
			last += dirSuffix
		}
		parts = append(parts, last)
	}
	return filepath.Join(parts...)
}

func (s *Store) dirOf(path string) string { return filepath.Dir(path) }

// encodeElement returns the names of the continuation directories and the last name.
func encodeElement(e string) (cont []string, last string) {
	e = strings.ReplaceAll(e, "%", "%25")
	if strings.HasPrefix(e, ".") {
		e = "%2E" + e[1:]
	}
	if strings.HasSuffix(e, dirSuffix) {
		e = e[:len(e)-len(dirSuffix)] + "%2Ed"
	}
	for len(e) > nameBytes {
		// Neither an escape nor a character is cut in two. Where to cut depends only on the bytes
		// before the cut, so elements with a common beginning share their directories.
		n := nameBytes
		for e[n-1] == '%' || e[n-2] == '%' || !utf8.RuneStart(e[n]) {
			n--
		}
		cont = append(cont, e[:n]+contSuffix)
		e = e[n:]
	}
	return cont, e
}

// node is an entry of a directory, translated back.
type node struct {
	key  string // the object's key, or what all keys in the directory begin with
	name string // in the directory
	dir  bool
	cont bool // a continuation directory
}

// decodeEntry translates an entry of a directory whose keys begin with base. ok is false for what cannot be the store's.
func decodeEntry(base, name string, isDir bool) (n node, ok bool) {
	n = node{name: name, dir: isDir}
	piece := name
	if isDir {
		switch {
		case strings.HasSuffix(name, contSuffix):
			piece, n.cont = strings.TrimSuffix(name, contSuffix), true
		case strings.HasSuffix(name, dirSuffix):
			piece = strings.TrimSuffix(name, dirSuffix)
		default:
			return n, false
		}
	}
	raw, err := url.PathUnescape(piece)
	if err != nil || raw == "" {
		return n, false
	}
	n.key = base + raw
	if isDir && !n.cont {
		n.key += "/"
	}
	return n, true
}

// owns says whether path is where the store itself would put key; a file that somebody dropped into the
// directory under a name that the store never uses is not an object.
func (s *Store) owns(key, path string) bool {
	return objstore.CheckKey(key) == nil && s.path(key) == path
}
