// Package docs holds the pages that programs quote, so that their advice equals the pages.
package docs

import _ "embed" // the pages

// Operations is operations.md.
//
//go:embed operations.md
var Operations string
