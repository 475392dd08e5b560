// Package docs holds the pages that programs quote, so that what they advise is what the pages say.
package docs

import _ "embed" // the pages

// Operations is operations.md.
//
//go:embed operations.md
var Operations string
