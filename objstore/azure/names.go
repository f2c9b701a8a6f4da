package azure

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a blob's name.
const (
	maxNameRunes    = 1024
	maxNameElements = 254
)

// checkName says what Azure does not keep of a name that objstore.CheckKey finds good.
func checkName(name string) error {
	if n := utf8.RuneCountInString(name); n > maxNameRunes {
		return fmt.Errorf("with its prefix it has %d characters, Azure allows %d", n, maxNameRunes)
	}
	n := 0
	for e := range strings.SplitSeq(name, "/") {
		if n++; strings.HasSuffix(e, ".") {
			return fmt.Errorf("its element %q ends in a dot, which Azure drops", e)
		}
	}
	if n > maxNameElements {
		return fmt.Errorf("with its prefix it has %d elements, Azure allows %d", n, maxNameElements)
	}
	return nil
}

// encodeMetadata makes identifiers of names, see the package comment. An underscore is in none of them, so it is free.
func encodeMetadata(meta map[string]string) map[string]*string {
	if len(meta) == 0 {
		return nil
	}
	out := make(map[string]*string, len(meta))
	for k, v := range meta {
		k = strings.ReplaceAll(k, "-", "_h")
		if k[0] >= '0' && k[0] <= '9' {
			k = "_d" + k
		}
		if v == "" || v[0] == '=' {
			v = "=" + v
		}
		out[k] = &v
	}
	return out
}

// decodeMetadata undoes encodeMetadata. HTTP has changed the case of names on the way. What others wrote comes back as well as it can.
func decodeMetadata(meta map[string]*string) map[string]string {
	out := make(map[string]string, len(meta))
	for k, v := range meta {
		k = strings.TrimPrefix(strings.ToLower(k), "_d")
		out[strings.ReplaceAll(k, "_h", "-")] = strings.TrimPrefix(value(v), "=")
	}
	return out
}
