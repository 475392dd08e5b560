// Benchmarks beside other tokenizers, which the project itself does not depend on.
module github.com/kvasir-dev/kvasir/hack/bench-tokens

go 1.26.0

require (
	github.com/kvasir-dev/kvasir v0.0.0
	github.com/tiktoken-go/tokenizer v0.10.0
)

require github.com/dlclark/regexp2/v2 v2.5.1 // indirect

replace github.com/kvasir-dev/kvasir => ../..
