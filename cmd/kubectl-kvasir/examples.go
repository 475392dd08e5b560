package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// helpExamples are those of each command, by its name below the program's: a line of explanation, then the command.
var helpExamples = map[string][]string{
	"": {
		"All pools of a namespace, and what is wrong with them", "status -n llm",
		"Check an installation end to end", "doctor -A",
	},
	"status": {
		"Pools of all namespaces", "status -A",
		"One pool with all columns", "status chat -o wide",
		"Its hit ratio, for a script", "status chat -o jsonpath={.pools[0].live.hits.hit}",
		"A picker that runs without a cluster", "status --picker http://127.0.0.1:9090",
	},
	"top": {
		"Follow one pool", "top chat",
		"Once, for a log", "top -A --once",
	},
	"explain": {
		"Why a request would go where it would go", "explain chat -f request.json",
		"The same from standard input, with every term of the costs", "explain chat -f - -o yaml < request.json",
	},
	"decisions": {
		"The last 20 decisions", "decisions chat",
		"Follow them, one JSON object a line", "decisions chat -f -o json",
		"What the pickers have logged, to replay it", "decisions chat --log",
	},
	"prefixes": {
		"The ten hottest prefixes", "prefixes chat --limit 10",
	},
	"doctor": {
		"All pools of all namespaces", "doctor -A",
		"What failed, for a script", `doctor -o jsonpath={.results[?(@.level=="fail")].message}`,
	},
	"sysdump": {
		"An archive for a bug report", "sysdump -n llm",
		"Of all namespaces, under a name of your own", "sysdump -A --file bug.tar.gz",
	},
	"ui": {
		"Open the page of a pool in a browser", "ui chat --port 8080",
	},
	"drain": {
		"Send no more requests to a pod", "drain chat-7f9c4-x2b1q",
		"Have it replaced, at the latest in five minutes", "drain chat-7f9c4-x2b1q --replace --deadline 5m",
	},
	"undrain": {
		"Send requests to it again", "undrain chat-7f9c4-x2b1q",
	},
	"rollout": {
		"Wait until all pods are of the newest revision", "rollout status chat",
	},
	"rollout status": {
		"Wait at most ten minutes", "rollout status chat --timeout 10m",
	},
	"rollout pause": {
		"Replace no pods, and keep the size", "rollout pause chat --all",
	},
	"rollout resume": {
		"Go on", "rollout resume chat",
	},
	"rollout restart": {
		"Replace all pods", "rollout restart chat",
	},
	"inject": {
		"Add the reporter to a Deployment", "inject -f deployment.yaml --pool chat | kubectl apply -f -",
	},
	"validate": {
		"Check files before they are applied", "validate pool.yaml policy.yaml",
		"Check a directory that a picker reads", "validate /etc/kvasir",
	},
	"events": {
		"Follow the KV cache events of an engine", "events --connect tcp://127.0.0.1:5557 --envelope",
		"Decode one payload", "events < payload.hex",
	},
	"render": {
		"The prompt that a template makes of messages", "render --template chat_template.jinja < variables.jsonl",
	},
	"tokenize": {
		"Token ids of a text", `tokenize --tokenizer models/qwen2.5 <<< '"Hello, world"'`,
		"Token ids of chat requests", "tokenize --tokenizer models/qwen2.5 --chat < requests.jsonl",
	},
}

// giveExamples adds the examples to their commands.
func giveExamples(root *cobra.Command) {
	var give func(c *cobra.Command, path string)
	give = func(c *cobra.Command, path string) {
		if all := helpExamples[path]; len(all) > 0 {
			var b strings.Builder
			for i := 0; i+1 < len(all); i += 2 {
				b.WriteString("  # " + all[i] + "\n  " + program + " " + all[i+1] + "\n")
			}
			c.Example = strings.TrimSuffix(b.String(), "\n")
		}
		for _, below := range c.Commands() {
			give(below, strings.TrimSpace(path+" "+below.Name()))
		}
	}
	give(root, "")
}
