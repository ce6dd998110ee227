// Package hardware has the tests that a machine with GPUs has to pass: contexts, the limits of what can be registered, registering again.
// deploy/gpu-check.sh runs them with KVLEASE_GPU=1 on the machine's own driver and NIXL. Without that they run against the fakes, so that
// what they say of a machine is not said for the first time there. They have not run on a GPU yet.
package hardware
