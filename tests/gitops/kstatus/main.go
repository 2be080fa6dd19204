// Reads objects as JSON, one after another, and prints what a Flux Kustomization that waits takes each for: what kstatus
// says, the library that Flux and the Config Connector wait with, or for kinds that its healthCheckExprs name (a JSON list
// in the one argument) what those say, by Flux's rules and with its CEL library. Built and called by
// tests/gitops/test_kstatus.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type check struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	InProgress string `json:"inProgress"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

func main() {
	var checks []check
	if len(os.Args) > 1 {
		must(json.Unmarshal([]byte(os.Args[1]), &checks))
	}
	decoder := json.NewDecoder(os.Stdin)
	for decoder.More() {
		object := &unstructured.Unstructured{}
		must(decoder.Decode(object))
		fmt.Println(judge(object, checks))
	}
}

func judge(object *unstructured.Unstructured, checks []check) status.Status {
	for _, each := range checks {
		if each.APIVersion == object.GetAPIVersion() && each.Kind == object.GetKind() {
			return evaluate(object, each)
		}
	}
	result, err := status.Compute(object)
	must(err)
	return result.Status
}

// The order is that of Flux's RFC 0009; an object that was changed since it was looked at is in progress.
func evaluate(object *unstructured.Unstructured, by check) status.Status {
	observed, found, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	must(err)
	if found && observed != object.GetGeneration() {
		return status.InProgressStatus
	}
	for _, each := range []struct {
		expression string
		says       status.Status
	}{
		{by.InProgress, status.InProgressStatus},
		{by.Failed, status.FailedStatus},
		{by.Current, status.CurrentStatus},
	} {
		if each.expression != "" && holds(each.expression, object.Object) {
			return each.says
		}
	}
	return status.InProgressStatus
}

func holds(expression string, object map[string]any) bool {
	environment, err := cel.NewEnv(
		cel.HomogeneousAggregateLiterals(),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Sets(),
		ext.Encoders(),
	)
	must(err)
	parsed, issues := environment.Parse(expression)
	must(issues.Err())
	program, err := environment.Program(parsed)
	must(err)
	value, _, err := program.Eval(object)
	must(err)
	answer, isBoolean := value.Value().(bool)
	if !isBoolean {
		must(fmt.Errorf("%q is no boolean: %v", expression, value))
	}
	return answer
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
