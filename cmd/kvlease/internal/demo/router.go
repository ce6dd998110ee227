package demo

import (
	"encoding/json"
	"fmt"
)

// routed does to transfer parameters what proxies in front of vLLM do: the object is taken apart and written anew by a JSON
// library that holds numbers as floats and knows nothing of our key, the two booleans are set for the side that it goes to (toP:
// the next turn, at P), and the host is the address under which the router knows the engine.
func routed(params json.RawMessage, host string, toP bool) (json.RawMessage, error) {
	var object map[string]any
	if err := json.Unmarshal(params, &object); err != nil || object == nil {
		return nil, fmt.Errorf("the router cannot read the transfer parameters %.60q: %v", params, err)
	}
	object["do_remote_prefill"], object["do_remote_decode"] = !toP, toP
	if host != "" {
		object["remote_host"] = host
	}
	return json.Marshal(object)
}
