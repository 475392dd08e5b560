package mutants

// Of images in process: what would match prompts by blocks that no engine has, or keep what belongs to another prompt.
func init() {
	mutants = append(mutants, []mutant{
		{
			name: "images are trusted though the engine announces them by other keys",
			file: "internal/tokens/tokencheck/images.go",
			old:  "	case conclusive && !holds:\n",
			new:  "	case conclusive && !holds && false:\n",
			pkg:  "./internal/tokens/tokencheck", test: "TestImagesAreTrustedOnceTheyAreProven",
		},
		{
			name: "an image is turned by the wrong orientations",
			file: "internal/tokens/images/format.go",
			old:  "		return v >= 5 && v <= 8, nil\n",
			new:  "		return v >= 6 && v <= 8, nil\n",
			pkg:  "./internal/tokens/images", test: "TestFilesHaveTheKeyAndTheSizeOfTheEngine",
		},
		{
			name: "ids of a prompt with images are kept without them",
			file: "internal/picker/tokens.go",
			old:  "	out := v.keyed(s, ids, items, grain, chain, TokensExact)\n	out.ids = nil // without their items, they are another prompt\n",
			new:  "	out := v.keyed(s, ids, items, grain, chain, TokensExact)\n",
			pkg:  "./internal/picker", test: "TestImagesAreMadeInProcessWhereTheyAreProven",
		},
		{
			name: "a text that looks like an image is taken for one",
			file: "internal/tokens/chatprompt/images.go",
			old:  "	if n != len(parts) || n == 0 {\n",
			new:  "	if n < len(parts) || n == 0 {\n",
			pkg:  "./internal/tokens/chatprompt", test: "TestUnusualImagesAreLeftToTheEngine",
		},
	}...)
}
