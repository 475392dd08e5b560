package docpage

import "testing"

func TestPlainKeepsWordsAndForgetsNumbers(t *testing.T) {
	a := "POD     HIT      COST\nvllm-0  69.4 %   8.31 ms  872356704e32 12s\n"
	b := "POD   HIT   COST\nvllm-1  7 %   1.2 s  00aa56704e32 3s"
	if Plain(a) != Plain(b) {
		t.Errorf("%q and %q", Plain(a), Plain(b))
	}
	if Plain(a) == Plain("POD   HIT   COST\nvllm-1  -   1.2 s  00aa56704e32 3s") {
		t.Error("a number is as good as none")
	}
}

func TestAPageThatShowsSomethingElseIsTold(t *testing.T) {
	if Check("kubectl-kvasir.md", "kubectl kvasir no-such-command", "", false) == nil {
		t.Error("an example that is not there is believed")
	}
	if Check("kubectl-kvasir.md", "echo 9 | kubectl kvasir events", `{"error":"something else"}`, false) == nil {
		t.Error("any output is believed")
	}
	if err := Check("kubectl-kvasir.md", "echo 9 | kubectl kvasir events", `{"error":"encoding/hex: odd length hex string"}`+"\n", false); err != nil {
		t.Error(err)
	}
}
