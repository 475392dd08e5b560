package picker

import (
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// Headers, in lower case, that control the engine like the fields of openai.Steering do: vLLM (0.32) takes the priority from
// a header before it looks into the body, and llm-d's sidecar in front of an engine sends the prefill, and with it the prompt,
// to the address that a header names.
var (
	priorityHeaders = [...]string{"x-vllm-priority"}
	transferHeaders = [...]string{
		PrefillerHeader, "x-prefiller-url", "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port",
		relay.TicketHeader,
	}
	// modelHeaders replace the body's model, on the routes of SageMaker (/invocations). The model that counts for a tenant's limits is
	// the body's, and so is the one that the engine gets.
	modelHeaders = [...]string{InvokedModelHeader, "x-amzn-sagemaker-adapter-alias"}
)

// LoadReport begins the names, in lower case, of the headers of load reports (ORCA). vLLM adds one to JSON answers, with how full
// its cache is and how many requests wait, if the request has the header LoadReport + "-format". Neither passes the picker: the
// load of engines is of no concern to clients.
const LoadReport = "endpoint-load-metrics"

// InvokedModelHeader is the header, in lower case, from which vLLM takes the model on openai.Invocations. Without it the base model
// answers, whatever the body says.
const InvokedModelHeader = "x-amzn-sagemaker-adapter-identifier"

// InvokedModel is the value of InvokedModelHeader that makes the engine serve the model that the body names; empty for none.
func (d *Decision) InvokedModel() string { return d.invoked }

// invokedModel is the model that the body of a request names, if the engine takes it from a header.
func invokedModel(in *Request) string {
	if !in.Invokes {
		return ""
	}
	return in.bodyModel()
}

// sessionHeader is the header, in lower case, from which vLLM (0.32) takes the session_id of a request whose body has none.
const sessionHeader = "x-session-id"

// steering checks what a request controls in the engine against what its class allows. drop reports that its priority must not
// reach the engine. It fails with an *Error.
//
// A priority is dropped, and a transfer is refused: without its priority a request gets the same answer, as it does from
// engines that do not schedule by priority. A request without its transfer gets another one, and a client that sends one
// takes the picker for an engine, or is hostile: connectors read the blocks that it names from the address that it names,
// and some fail on values that they do not expect, together with the engine. In a form a priority is refused, too: no client
// sends one by default.
//
// No policy allows a client to ask for reports of cached blocks. They are for the picker: the engine announces the blocks as if it
// had stored them again, so that a client could make the index hold copies that do not exist.
func (a *AdmissionSpec) steering(in *Request, r *openai.Request, c *caller) (drop bool, err error) {
	found := r.Steering
	if in.Unparsed {
		if found, err = openai.SteeringOf(in.Body); err != nil {
			return false, badRequest(err)
		}
	}
	if model := invokedModel(in); !isVisible(model) {
		return false, UnknownModel(model) // no header can have it
	}
	form := false
	if in.Unparsed && in.Header != nil {
		var fields openai.Steering
		if fields, form, err = openai.FormSteering(in.Header("content-type"), in.Body); err != nil {
			return false, badRequest(err)
		}
		found |= fields
	}
	if form && found&openai.SteersPriority != 0 && !a.SetsPriority && !c.class.SetsPriority {
		return false, priorityForbidden()
	}
	if found&openai.SteersEvents != 0 && !in.AsksReport || in.Header != nil && len(in.Header(sessionHeader)) > openai.MaxEventText {
		return false, reportForbidden()
	}
	if found&openai.SteersTransfer != 0 && !a.SetsTransfer && !c.class.SetsTransfer {
		return false, transferForbidden()
	}
	return found&openai.SteersPriority != 0 && !a.SetsPriority && !c.class.SetsPriority, nil
}

// DropsPriority reports whether the engine must not get the priority in the request's body: the caller drops it with
// openai.DropPriority before the body is sent.
func (d *Decision) DropsPriority() bool { return d.dropsPriority }

// EachForeignHeader calls f with each header, in lower case, that the engine must not get from this request: those that only
// pickers and gateways set, those that replace the model, and the one that asks for load reports.
func (d *Decision) EachForeignHeader(f func(name string)) {
	f(LoadReport + "-format")
	for _, name := range modelHeaders {
		f(name)
	}
	a, c := &d.view.spec.Policy.Admission, d.caller.class
	if !a.SetsPriority && !c.SetsPriority {
		for _, name := range priorityHeaders {
			f(name)
		}
	}
	if !a.SetsTransfer && !c.SetsTransfer || d.view.spec.Policy.Handoffs.Sidecar {
		for _, name := range transferHeaders {
			f(name)
		}
	}
}
