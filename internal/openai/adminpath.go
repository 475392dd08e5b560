package openai

import (
	"net/url"
	"path"
	"strings"
)

// administrative are the paths of engines' servers that change the engine or show how it is set up: of vLLM from the routers
// of 0.11.1 to 0.32, and of SGLang up to 0.5 (docs/routing.md has the list by purpose). Clients must not reach them: most need
// no key, some only VLLM_SERVER_DEV_MODE or VLLM_ALLOW_RUNTIME_LORA_UPDATING.
//
// The proxy has a list of allowed paths besides. Behind a gateway that is not possible: the paths of a route are its owner's,
// with prefixes and other engines' APIs, and the conformance tests of the inference extension use paths of no API.
var administrative = setOf(
	// Sleep, pause, caches and memory.
	"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/release_kv_cache_memory",
	"/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/abort_requests", "/inference/v1/abort_requests",
	// Adapters; /adapters is that of SageMaker's container standards.
	"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters",
	// Weights.
	"/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update",
	"/update_weights", "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size",
	// Workers, scaling, profiling, faults.
	"/collective_rpc", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/start_profile", "/stop_profile",
	"/fault_tolerance/apply", "/fault_tolerance/status",
	// Information about the engine and its other users.
	"/server_info", "/kv_event_sources", "/metrics", "/load", "/docs", "/redoc", "/openapi.json",
	// SGLang: caches, memory, other clients' requests.
	"/flush_cache", "/clear_hicache_storage_backend", "/release_memory_occupation", "/resume_memory_occupation", "/abort_request",
	"/pause_generation", "/continue_generation", "/slow_down",
	// SGLang: adapters and weights.
	"/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter", "/update_weights_from_disk",
	"/update_weights_from_tensor", "/update_weights_from_distributed", "/update_weights_from_ipc", "/init_weights_update_group",
	"/destroy_weights_update_group", "/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance",
	"/get_weights_by_name", "/get_weight_version", "/weights_checker",
	// SGLang: settings, records, information.
	"/set_internal_state", "/configure_logging", "/freeze_gc", "/start_expert_distribution_record",
	"/stop_expert_distribution_record", "/dump_expert_distribution_record", "/get_server_info", "/get_load",
)

func setOf(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// maxDecodings bounds how often an escaped path is decoded; what is escaped deeper counts as administrative.
const maxDecodings = 4

// Administrative reports whether a request target is an administrative path of an engine, in any spelling that a server or
// a proxy on the way could read as one: escaped, also repeatedly, with extra dots, slashes or backslashes, in other case,
// with parameters, below a prefix that can be removed, or as a full URL.
func Administrative(target string) bool {
	for range maxDecodings {
		if administrativeAs(target) {
			return true
		}
		decoded, err := url.PathUnescape(target)
		if err != nil {
			decoded = unescapeLoosely(target)
		}
		if decoded == target {
			return false
		}
		target = decoded
	}
	return true
}

// administrativeAs judges a target that is decoded no further.
func administrativeAs(target string) bool {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	var b strings.Builder
	for _, r := range strings.ToLower(target) {
		switch {
		case r == '\\':
			b.WriteByte('/')
		case r <= ' ' || r == 0x7f:
		default:
			b.WriteRune(r)
		}
	}
	segments := strings.Split(b.String(), "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	raw := strings.Join(segments, "/")
	return endsAdministrative("/"+raw) || endsAdministrative(path.Clean("/"+raw))
}

// endsAdministrative reports whether some end of a path, from a slash on, is administrative, or lies below /adapters.
func endsAdministrative(p string) bool {
	p = strings.TrimRight(p, "/")
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == '/' && (administrative[p[i:]] || strings.HasPrefix(p[i:], "/adapters/")) {
			return true
		}
	}
	return false
}

// unescapeLoosely decodes the escapes that are well formed, as lenient servers do.
func unescapeLoosely(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := url.PathUnescape(s[i : i+3]); err == nil {
				b.WriteString(c)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
