// Reads objects as JSON, one after another, and prints what kstatus says of each: the library that Flux and the Config
// Connector wait with. Built and called by tests/gitops/test_kstatus.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	decoder := json.NewDecoder(os.Stdin)
	for decoder.More() {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); err != nil {
			fail(err)
		}
		result, err := status.Compute(object)
		if err != nil {
			fail(err)
		}
		fmt.Println(result.Status)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
