package objstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckKey says what is wrong with a key. A key is 1 to MaxKeyBytes bytes of UTF-8 without control
// characters and backslashes, made of elements separated by single slashes; an element is not
// empty, "." or "..". A key may be a prefix of another: "a" and "a/b" can both exist.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("key is empty")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("key has %d bytes, the limit is %d", len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("key is not valid UTF-8")
	}
	for _, r := range key {
		if unicode.IsControl(r) || r == '\\' || r == utf8.RuneError {
			return fmt.Errorf("key contains %q", r)
		}
	}
	for e := range strings.SplitSeq(key, "/") {
		if e == "" || e == "." || e == ".." {
			return fmt.Errorf("key has a path element %q", e)
		}
	}
	return nil
}

// CheckMetadata says what is wrong with an object's metadata. Names are 1 to 64 bytes of lower-case ASCII
// letters, digits and hyphens; values are printable ASCII without leading or trailing blanks (they
// travel as HTTP headers); all together at most MaxMetadataBytes.
func CheckMetadata(meta map[string]string) error {
	total := 0
	for k, v := range meta {
		total += len(k) + len(v)
		if k == "" || len(k) > 64 {
			return fmt.Errorf("metadata name %q has %d bytes, 1 to 64 are allowed", k, len(k))
		}
		for i := range len(k) {
			if c := k[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
				return fmt.Errorf("metadata name %q contains %q", k, c)
			}
		}
		for i := range len(v) {
			if v[i] < 0x20 || v[i] > 0x7e {
				return fmt.Errorf("metadata value of %q contains byte 0x%02x", k, v[i])
			}
		}
		if strings.TrimSpace(v) != v {
			return fmt.Errorf("metadata value of %q begins or ends with a blank", k)
		}
	}
	if total > MaxMetadataBytes {
		return fmt.Errorf("metadata has %d bytes, the limit is %d", total, MaxMetadataBytes)
	}
	return nil
}

// CheckPut is for backends: everything that makes a Put ErrInvalid or ErrTooLarge.
func CheckPut(store, key string, body []byte, meta map[string]string) error {
	if err := CheckKey(key); err != nil {
		return &Error{Store: store, Op: "put", Key: key, Kind: ErrInvalid, Err: err}
	}
	if err := CheckMetadata(meta); err != nil {
		return &Error{Store: store, Op: "put", Key: key, Kind: ErrInvalid, Err: err}
	}
	if len(body) > MaxBodyBytes {
		return &Error{Store: store, Op: "put", Key: key, Kind: ErrTooLarge,
			Err: fmt.Errorf("body has %d bytes, the limit is %d", len(body), MaxBodyBytes)}
	}
	return nil
}

// CheckList is for backends: it validates the limit of a List and replaces 0 by MaxListLimit.
func CheckList(store, prefix string, limit int) (int, error) {
	if limit < 0 || limit > MaxListLimit {
		return 0, &Error{Store: store, Op: "list", Key: prefix, Kind: ErrInvalid,
			Err: fmt.Errorf("limit %d is not within 0 to %d", limit, MaxListLimit)}
	}
	if limit == 0 {
		limit = MaxListLimit
	}
	return limit, nil
}
