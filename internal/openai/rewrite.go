package openai

// ReplaceModel appends body to dst with name in place of the model that Parse has found in it; everything else is kept
// byte for byte. r must hold what was parsed from body. Bytes of name that are not UTF-8 become U+FFFD.
func ReplaceModel(dst, body []byte, r *Request, name string) []byte {
	dst = append(dst, body[:r.ModelAt]...)
	dst = appendJSONString(dst, name)
	return append(dst, body[r.ModelEnd:]...)
}
