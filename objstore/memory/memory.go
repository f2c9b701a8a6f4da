// Package memory is an object store in the memory of one process, with the
// semantics of the real ones. It starts no goroutine and reads no clock unless
// it is given one, so a simulator stays deterministic on it. Nothing survives the process.
//
// Importing it registers the scheme "mem": mem://name is one store per name and process.
package memory

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// Store implements objstore.Store.
type Store struct {
	name string
	now  func() time.Time

	mu      sync.Mutex
	objects map[string]object
	sorted  []string // keys of objects in byte order; nil after a key came or went
}

// object is immutable; a Put replaces it whole, so readers keep the version they opened.
type object struct {
	body []byte
	info objstore.Info
}

// Options of New. The zero value is ready to use.
type Options struct {
	Name string           // for error messages
	Now  func() time.Time // source of Info.Modified; nil leaves it zero
}

// New returns an empty store.
func New(o Options) *Store {
	return &Store{name: "mem://" + o.Name, now: o.Now, objects: make(map[string]object)}
}

var named struct {
	sync.Mutex
	stores map[string]*Store
}

func init() {
	objstore.Register("mem", func(_ context.Context, u *url.URL) (objstore.Store, error) {
		if u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" {
			return nil, fmt.Errorf("objstore: a memory store's URL is mem://name, without path or query")
		}
		named.Lock()
		defer named.Unlock()
		if named.stores == nil {
			named.stores = make(map[string]*Store)
		}
		s := named.stores[u.Host]
		if s == nil {
			s = New(Options{Name: u.Host, Now: time.Now})
			named.stores[u.Host] = s
		}
		return s, nil
	})
}

func (s *Store) String() string { return s.name }

// Close does nothing: a named store lives as long as the process.
func (s *Store) Close() error { return nil }

func (s *Store) err(op, key string, kind, cause error) error {
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: kind, Err: cause}
}

// Put implements objstore.Store. The ETag is the MD5 of the body, as on S3.
func (s *Store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.name, key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "put", key); err != nil {
		return objstore.Info{}, err
	}
	sum := md5.Sum(body)
	o := object{body: bytes.Clone(body), info: objstore.Info{
		Key: key, Size: int64(len(body)), ETag: hex.EncodeToString(sum[:]), Metadata: maps.Clone(meta)}}

	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.objects[key]
	if !cond.Holds(exists, old.info.ETag) {
		return objstore.Info{}, s.err("put", key, objstore.ErrPrecondition, nil)
	}
	if s.now != nil {
		o.info.Modified = s.now()
	}
	s.objects[key] = o
	if !exists {
		s.sorted = nil
	}
	return copyInfo(o.info), nil
}

func copyInfo(i objstore.Info) objstore.Info {
	i.Metadata = maps.Clone(i.Metadata)
	return i
}

func (s *Store) lookup(ctx context.Context, op, key string) (object, error) {
	if err := objstore.CheckKey(key); err != nil {
		return object{}, s.err(op, key, objstore.ErrInvalid, err)
	}
	if err := objstore.CheckContext(ctx, s.name, op, key); err != nil {
		return object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return object{}, s.err(op, key, objstore.ErrNotFound, nil)
	}
	return o, nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	o, err := s.lookup(ctx, "get", key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	from, to, ok := r.Resolve(o.info.Size)
	if !ok {
		return nil, objstore.Info{}, s.err("get", key, objstore.ErrInvalid,
			fmt.Errorf("range at %d of %d bytes does not fit an object of %d bytes", r.Offset, r.Length, o.info.Size))
	}
	return io.NopCloser(bytes.NewReader(o.body[from:to])), copyInfo(o.info), nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	o, err := s.lookup(ctx, "head", key)
	if err != nil {
		return objstore.Info{}, err
	}
	return copyInfo(o.info), nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.name, prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.objects))
	}
	i, found := slices.BinarySearch(s.sorted, max(prefix, startAfter))
	if found && startAfter >= prefix {
		i++
	}
	var page objstore.Page
	for ; i < len(s.sorted) && strings.HasPrefix(s.sorted[i], prefix); i++ {
		if len(page.Objects) == limit {
			page.More = true
			break
		}
		info := s.objects[s.sorted[i]].info
		info.Metadata = nil
		page.Objects = append(page.Objects, info)
	}
	return page, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.err("delete", key, objstore.ErrInvalid, err)
	}
	if err := objstore.CheckContext(ctx, s.name, "delete", key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key]; ok {
		delete(s.objects, key)
		s.sorted = nil
	}
	return nil
}
