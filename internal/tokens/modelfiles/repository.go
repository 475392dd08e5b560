package modelfiles

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// DefaultRevision is the branch of a repository that has none named.
const DefaultRevision = "main"

// Repository names the files of a model in a model hub. It is comparable.
type Repository struct {
	// Name is NAME or ORGANIZATION/NAME.
	Name string
	// Revision is a branch, a tag or a commit; empty for DefaultRevision.
	Revision string
	// Template is the file of the chat template; empty for the model's own.
	Template string
	// Token is sent to the hub for this repository; empty for the installation's. It is a secret.
	Token string
}

// The API checks names by the same expressions (api/v1alpha1, TokenizerHub).
var (
	repositoryName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?(/[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?)?$`)
	revisionName   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._/-]{0,253}[A-Za-z0-9_])?$`)
	commitName     = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// IsCommit reports whether a revision is the hash of a commit, whose files never change.
func IsCommit(revision string) bool { return commitName.MatchString(revision) }

// NamesRepository reports whether the name of a model is ORGANIZATION/NAME. Names that people make up, and paths, are seldom of that form.
func NamesRepository(name string) bool {
	r := Repository{Name: name}
	return strings.Contains(name, "/") && r.Check() == nil
}

// Check reports whether the names can be parts of a URL and of a path. It is the second check: the API has one, too, but objects of
// another version of it are not checked again.
func (r *Repository) Check() error {
	switch {
	case !repositoryName.MatchString(r.Name) || strings.Contains(r.Name, "..") || strings.Contains(r.Name, "--"):
		return fmt.Errorf("%q is no name of a repository: want NAME or ORGANIZATION/NAME, and no URL", r.Name)
	case r.Revision != "" && (!revisionName.MatchString(r.Revision) || strings.Contains(r.Revision, "..") || !fs.ValidPath(r.Revision)):
		return fmt.Errorf("%q is no revision: want a branch, a tag or a commit", r.Revision)
	case r.Template != "" && (!fs.ValidPath(r.Template) || r.Template == "." || len(r.Template) > maxName):
		return fmt.Errorf("%q is no name of a file of a model", r.Template)
	}
	return nil
}

// At is the revision, or the default.
func (r *Repository) At() string {
	if r.Revision == "" {
		return DefaultRevision
	}
	return r.Revision
}

// Wanted are the files that a hub is asked for: tokenizer.json is the first.
func (r *Repository) Wanted() []string {
	all := slices.Clone(names)
	if r.Template != "" && !slices.Contains(all, r.Template) {
		all = append(all, r.Template)
	}
	return all
}

// Required reports whether a model cannot be used without one of its files.
func (r *Repository) Required(name string) bool { return name == required || name == r.Template }

// String is without the token.
func (r *Repository) String() string { return r.Name + " at " + r.At() }
