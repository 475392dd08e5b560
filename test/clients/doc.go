// Package clients runs the SDKs and load tools that people use with vLLM, unmodified, against Kvasir's proxy: what works
// with an engine must work with the proxy, with no other option. `make test-clients` installs each into an environment of
// its own in the user's cache and runs all of them; without the flag -clients every test of the package is skipped.
//
// Versions are pinned in envs/NAME/requirements.txt and envs/node/package.json, where update bots find them. The SDKs'
// cases are the scripts in scripts/; a script asserts, and a failure ends it with an error. docs/load-tools.md shows the
// commands of the load tools as they run here.
//
// Engines are simulated, so that a run needs no model. With -clients.engine=HOST:PORT a running vLLM stands behind the
// proxy; -clients.model names its model.
package clients
