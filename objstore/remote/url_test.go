package remote

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

func TestReadURL(t *testing.T) {
	for _, c := range []struct{ url, name, prefix, region, bad string }{
		{url: "x://bucket", name: "bucket"},
		{url: "x://bucket//a/b/?region=r&flag=true", name: "bucket", prefix: "a/b", region: "r"},
		{url: "x://key:secret@bucket", bad: "credentials"},
		{url: "x://bucket?region=", bad: `"region" needs one value`},
		{url: "x://bucket?region=a&region=b", bad: `"region" needs one value`},
		{url: "x://bucket?colour=red", bad: `"colour" is not known; it takes flag, region`},
		{url: "x://bucket?flag=maybe", bad: "flag: true or false"},
		{url: "x://bucket?a=%zz", bad: "malformed"},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		var region string
		name, prefix, err := ReadURL(u, "x://example", map[string]Param{"region": Text(&region), "flag": func(v string) error {
			if v != "true" {
				return errors.New("true or false")
			}
			return nil
		}})
		switch {
		case c.bad != "":
			if err == nil || !strings.Contains(err.Error(), c.bad) || !strings.Contains(err.Error(), "x://example") || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %q", c.url, err, c.bad)
			}
		case err != nil || name != c.name || prefix != c.prefix || region != c.region:
			t.Errorf("%s: %q, %q, %q, %v", c.url, name, prefix, region, err)
		}
	}
}
