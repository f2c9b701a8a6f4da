package remote

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Param takes the value of a parameter of a URL's query.
type Param func(value string) error

// Text is a Param that keeps the value.
func Text(into *string) Param {
	return func(value string) error {
		*into = value
		return nil
	}
}

// ReadURL reads the URL of a store: the host is the name of its bucket or container, the path the prefix of its keys without slashes at its ends,
// and each parameter of the query, which stands once and has a value, goes to its Param. Errors show the example. A name that is missing is the
// caller's to refuse.
func ReadURL(u *url.URL, example string, params map[string]Param) (name, prefix string, err error) {
	bad := func(format string, args ...any) (string, string, error) {
		return "", "", fmt.Errorf("objstore: %s URL: %s; write for example %s", u.Scheme, fmt.Sprintf(format, args...), example)
	}
	if u.User != nil {
		return bad("credentials do not belong into it; use the environment, or what else the SDK reads them from")
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("its query is malformed")
	}
	for _, k := range slices.Sorted(maps.Keys(q)) {
		set := params[k]
		switch v := q[k]; {
		case set == nil:
			return bad("%q is not known; it takes %s", k, strings.Join(slices.Sorted(maps.Keys(params)), ", "))
		case len(v) != 1 || v[0] == "":
			return bad("%q needs one value", k)
		default:
			if err := set(v[0]); err != nil {
				return bad("%s: %v", k, err)
			}
		}
	}
	return u.Host, strings.Trim(u.Path, "/"), nil
}
