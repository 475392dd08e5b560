package picker

import (
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// Holds reports whether the index has all whole blocks of a prompt with items at an endpoint of a pool, or at another one of its address:
// of a prompt that the engine has served without adapter and salt, it does if the items have the names by which the engine's events know
// them. conclusive is false if nothing can be learned: no whole block has an item, or the sizes of the engines' blocks are not known.
func (p *Picker) Holds(namespace, pool string, of *endpoint.Endpoint, ids []uint32, items []kvblock.Item) (holds, conclusive bool) {
	for _, v := range p.current.Load().pools {
		if v.spec.Namespace != namespace || v.spec.Name != pool {
			continue
		}
		grain := v.commonGrain()
		if grain == 0 || len(items) == 0 {
			return false, false
		}
		block := v.spec.BlockTokens
		keys := kvblock.AppendItemKeys(nil, v.spec.Seed.Root(v.spec.Model, ""), ids, block, grain*block, items)
		keys = keys[:len(keys)/grain*grain]
		if len(keys)*block <= items[len(items)-1].Offset {
			return false, false
		}
		matches := make([]kvindex.Match, len(v.holders))
		v.index.Match(keys, v.holders, matches)
		for i := range matches {
			ep := &v.spec.Endpoints[i]
			if ep.Address == of.Address && ep.Socket == of.Socket && matches[i].Confirmed() == len(keys) {
				return true, true
			}
		}
		return false, true
	}
	return false, false
}
