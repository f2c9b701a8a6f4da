package objstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/objstore"
	_ "github.com/btrlog/btrlog/objstore/memory" // the scheme mem://; localdir gives file://
)

// A register by compare-and-swap: read, change, write if nobody was faster. The nonce in the body
// makes every ETag unique.
func Example() {
	ctx := context.Background()
	s, err := objstore.Open(ctx, "mem://example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	if err := objstore.Probe(ctx, s, "scratch"); err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Put(ctx, "register", []byte("owner=a nonce=91d3"), nil, objstore.IfAbsent())
	fmt.Println("create:", err)

	_, seen, err := objstore.ReadAll(ctx, s, "register", 1024)
	fmt.Println("read:", err)
	_, err = s.Put(ctx, "register", []byte("owner=b nonce=07aa"), nil, objstore.IfMatch(seen.ETag))
	fmt.Println("swap:", err)
	_, err = s.Put(ctx, "register", []byte("owner=c nonce=5c1e"), nil, objstore.IfMatch(seen.ETag))
	fmt.Println("second swap of one version refused:", errors.Is(err, objstore.ErrPrecondition))
	fmt.Println("delete:", s.Delete(ctx, "register"))
	// Output:
	// create: <nil>
	// read: <nil>
	// swap: <nil>
	// second swap of one version refused: true
	// delete: <nil>
}
