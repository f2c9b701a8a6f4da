package objstore

import (
	"context"
	"fmt"
	"net/url"
	"sort"
	"strings"
	"sync"
)

// OpenFunc opens the store that a URL names.
type OpenFunc func(ctx context.Context, u *url.URL) (Store, error)

var registry struct {
	sync.Mutex
	schemes map[string]OpenFunc
}

// Register makes a URL scheme known to Open; backends call it from init. It panics if the scheme
// is taken.
func Register(scheme string, open OpenFunc) {
	registry.Lock()
	defer registry.Unlock()
	if registry.schemes == nil {
		registry.schemes = make(map[string]OpenFunc)
	}
	if _, dup := registry.schemes[scheme]; dup {
		panic("objstore: scheme " + scheme + " registered twice")
	}
	registry.schemes[scheme] = open
}

// Open opens the store that rawURL names, for example file:///var/lib/btrlog/store or mem://test.
// The scheme's backend must be linked into the program by importing its package.
func Open(ctx context.Context, rawURL string) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The URL may carry credentials, so it is not repeated.
		return nil, fmt.Errorf("objstore: the store's URL is malformed; write for example file:///path")
	}
	registry.Lock()
	open := registry.schemes[u.Scheme]
	known := make([]string, 0, len(registry.schemes))
	for s := range registry.schemes {
		known = append(known, s)
	}
	registry.Unlock()
	if open == nil {
		sort.Strings(known)
		return nil, fmt.Errorf("objstore: no backend for scheme %q in this program; it knows: %s",
			u.Scheme, strings.Join(known, ", "))
	}
	return open(ctx, u)
}
