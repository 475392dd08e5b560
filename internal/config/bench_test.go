package config

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkLoad reads a directory of a thousand pods after a change of one of them: in a file each, and all in one.
func BenchmarkLoad(b *testing.B) {
	const pods = 1000
	text := func(i, port int) string {
		return strings.NewReplacer("m-a", fmt.Sprint("s", i), "m-0", fmt.Sprint("m-", i), "u0", fmt.Sprint("u", i), "8001", fmt.Sprint(port)).
			Replace(smallSlice)
	}
	for _, files := range []int{pods, 1} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			d := open(b, "pool.yaml", smallPool)
			all := make([]string, pods)
			for i := range all {
				all[i] = text(i, 8001)
				if files > 1 {
					write(b, d.file(fmt.Sprintf("%d.yaml", i)), all[i])
				}
			}
			if files == 1 {
				write(b, d.file("all.yaml"), strings.Join(all, "---\n"))
			}
			if s, _ := d.Load(b.Context()); len(s.Specs) != 1 || len(s.Specs[0].Endpoints) != pods {
				b.Fatalf("unexpected state with problems %v", s.Problems)
			}
			port := 8001
			for b.Loop() {
				b.StopTimer()
				port = 8001 + (port-8000)%1000
				all[0] = text(0, port)
				if files > 1 {
					write(b, d.file("0.yaml"), all[0])
				} else {
					write(b, d.file("all.yaml"), strings.Join(all, "---\n"))
				}
				b.StartTimer()
				if _, changed := d.Load(b.Context()); !changed {
					b.Fatal("no change")
				}
			}
		})
	}
}
