// Package real tests Kvasir against real vLLM: its CPU build, a small model with random weights and a real tokenizer.
// Front end, scheduler, block pool, KV events, replay and metrics are vLLM's own; only the kernels differ from those of
// a GPU. `make test-real` installs what is needed and runs all of it; without the flag -real.release every test of the
// package is skipped.
//
// The files that begin with harness_ are the package's API; all others hold cases. A case is an ordinary test:
//
//	func TestAResetEmptiesTheIndex(t *testing.T) {
//		engines := sharedEngines(t)                    // two engines with the documented flags
//		p := startPicker(t, engines, pickerConfig{})   // the real program in front of them
//		a := p.send(t, chat("t1", say("user", text("reset", 300))))
//		verdict(t, a.exact())                          // nil, or how predicted and delivered differ
//		verdict(t, p.holdsTheSame(engines))            // nil, or how index and engines differ
//	}
//
// Engines are expensive (25 s of processor time, 2.3 GB each), and at most two run at a time:
//
//   - sharedEngines returns the same two engines to every test of a run. They keep their caches, so a case begins its
//     prompts with a text of its own, as text does. A case may not leave them slow, asleep, paused or dead.
//   - startEngines starts some with other flags, for one test. It stops the shared ones when both places are taken.
//     Put such cases into files named own_*_test.go and the others into common_*_test.go: Go runs tests in the order of
//     file names, so the shared engines start once, and a run that its budget cuts short has judged what is common. The
//     judge of vllmsim takes longest and comes last. A test with one engine calls startAhead with the engine of the next
//     test, or the first of two, so that this one starts meanwhile.
//
// A case states the law even where Kvasir does not keep it yet. Such cases are listed in known.txt with the reason, and
// verdict then logs what is wrong; a listed case that passes fails, so that the list shrinks. Answers of such cases do not
// count in the totals.
//
// Every answer that send or record has seen counts in the totals which the run prints at its end: the share of requests
// whose cached tokens were predicted exactly and the deviation in tokens, by shape (the first argument of chat and of
// its siblings). Totals worse than the goals fail the run.
//
// Flags: -real.release VERSION (or "newest"), -real.wrap COMMAND (what engines are started with, such as
// "taskset --cpu-list 0-3"), -real.update (writes the release's row of docs/install-vllm.md), -real.record and -real.variants NAMES (the
// judge's recordings). With KVASIR_REAL_REQUIRED=1 a run that would be skipped fails, and so does one whose budget (-real.budget) leaves
// out more than two tests. Tests that begin with needWholeRun are for runs without a budget, and do not count.
package real
