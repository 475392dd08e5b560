# make -f hack/bench-index.mk: the figures of the index, beside the plain table and a naive map.
GO        ?= go
BENCHTIME ?= 1s

.PHONY: bench-index
bench-index: ## the index beside its baselines: lookups, writes, memory, clears
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m ./internal/kvblock ./internal/kvindex
