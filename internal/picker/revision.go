package picker

// sameRevision reports whether the engines of two endpoints are of one revision, as far as that is known. Engines of different versions or
// settings refuse to transfer blocks.
func (m *member) sameRevision(other *member) bool {
	return m.revision == other.revision || m.revision == "" || other.revision == ""
}

// pairs reports whether an endpoint that prefills is of the revision of some other candidate of s, if there are others.
func (v *view) pairs(s *scratch, from int) bool {
	others := false
	for _, i := range s.index {
		if i == from {
			continue
		}
		if others = true; v.members[from].sameRevision(v.members[i]) {
			return true
		}
	}
	return !others
}
