package lifecycle

// settleMoves computes how long the current series of moves is, and lets young successors stay. A pod that was created
// because its predecessor had to leave a node can be bound to such a node again: the taint only prefers other nodes, the
// template tolerates it or names the node, or no scheduler looks at it. Replacing that pod at once would never end, so it
// keeps its place for a pause after its creation. The pauses are those after ends. Only pods that served are never left where they are:
// one that serves from a node that dies within minutes, because its requests would be lost, and one that is not ready because its node is
// lost, because it serves nothing.
func (r *plan) settleMoves() {
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Node == NodeStays || p.Finished {
			continue
		}
		moves := p.Moves + 1
		if r.Now.Sub(p.Created) >= provenAfter {
			moves = 1
		}
		r.moves = max(r.moves, moves)
		until := p.Created.Add(backoff(moves))
		served := p.Node == NodeDies && p.Ready || p.lost() && p.Loaded
		if p.draining() || p.Deleting || served || !r.Now.Before(until) {
			continue
		}
		r.wake(until)
		p.Node = NodeStays
	}
}
