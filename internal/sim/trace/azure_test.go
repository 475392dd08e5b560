package trace

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadAzureSharesNothing(t *testing.T) {
	got, err := ReadAzure(strings.NewReader(AzureHeader + "\n2023-11-16 18:15:46.6805900,700,44\n2023-11-16 18:15:50.9951690,512,0\n2023-11-16 18:15:51+00:00,1,3\n"))
	session := func(n int) *int { return &n }
	want := []Request{
		{Timestamp: 0, Input: 700, Output: 44, Blocks: []int{0, 1}, Session: session(0)},
		{Timestamp: 4314, Input: 512, Output: 0, Blocks: []int{2}, Session: session(1)},
		{Timestamp: 4319, Input: 1, Output: 3, Blocks: []int{3}, Session: session(2)},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestReadAzureRefusesWhatIsNoTrace(t *testing.T) {
	const line = "2023-11-16 18:15:46.6805900,700,44\n"
	for name, in := range map[string]string{
		"nothing":                        "",
		"another header":                 "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
		"a field too few":                AzureHeader + "\n2023-11-16 18:15:46,1\n",
		"a field too many":               AzureHeader + "\n2023-11-16 18:15:46,1,2,3\n",
		"a quote that does not end":      AzureHeader + "\n\"2023-11-16 18:15:46,1,2\n",
		"a time that is none":            AzureHeader + "\nyesterday,1,2\n",
		"a length that is none":          AzureHeader + "\n2023-11-16 18:15:46,x,2\n",
		"an answer that is none":         AzureHeader + "\n2023-11-16 18:15:46,1,-2\n",
		"an empty prompt":                AzureHeader + "\n2023-11-16 18:15:46,0,2\n",
		"a prompt longer than any model": AzureHeader + "\n2023-11-16 18:15:46,99999999,2\n",
		"times that go back":             AzureHeader + "\n" + line + "2023-11-16 18:15:45,1,2\n",
	} {
		if list, err := ReadAzure(strings.NewReader(in)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

func FuzzReadAzure(f *testing.F) {
	f.Add(AzureHeader + "\n2023-11-16 18:15:46.6805900,700,44\n")
	f.Fuzz(func(t *testing.T, in string) {
		list, err := ReadAzure(strings.NewReader(in))
		if err != nil {
			return
		}
		parents := map[int]int{}
		for i := range list {
			if err := list[i].check(parents); err != nil {
				t.Errorf("line %d: %v", i+2, err)
			}
		}
	})
}
