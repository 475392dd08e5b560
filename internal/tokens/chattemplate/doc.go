// Package chattemplate renders the chat templates of models as the engine does: byte for byte what Python's Jinja2
// gives, set up as the transformers library sets it up (sandboxed and immutable, trim_blocks, lstrip_blocks,
// loopcontrols, the generation tag, tojson without escapes for characters beyond ASCII).
//
// It supports the part of Jinja that chat templates use, with Python's values: dicts in order of insertion, integers
// distinct from floats, str, repr and json.dumps to the byte, undefined values, lazy generators, and the scopes that Jinja
// gives its names when it compiles. It refuses everything else, at Parse where possible, with an error that wraps
// ErrUnsupported: the caller then lets the engine render. It never guesses.
//
// Templates come from users. A render reads no file and no clock, and is bounded in steps, memory, output and depth.
package chattemplate
