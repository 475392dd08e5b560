package v1alpha1

// Hooks are steps that look at each request before an endpoint is chosen for it.
//
// +kubebuilder:validation:MinProperties=1
type Hooks struct {
	// headers that expressions can read, by their names in lower case; at most 16. Headers with credentials cannot be read.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9_.-]+$`
	// +listType=set
	// +optional
	Headers []string `json:"headers,omitempty"`
	// bodyFields are the top-level fields of the body that expressions can read; at most 16. Fields with the prompt cannot be read.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_.-]+$`
	// +listType=set
	// +optional
	BodyFields []string `json:"bodyFields,omitempty"`
	// steps are taken in order, each once for a request; at most 16. A step sees what the steps before it have set. The first one that
	// refuses the request is the last one taken.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Steps []HookStep `json:"steps,omitempty"`
}

// HookStep refuses requests, or sets something in them.
//
// +kubebuilder:validation:XValidation:rule="(has(self.refuse) ? 1 : 0) + (has(self.call) ? 1 : 0) + (has(self.model) || has(self.priority) || has(self.sessionExpression) ? 1 : 0) == 1",message="a step has either refuse, or call, or at least one of model, priority and sessionExpression"
type HookStep struct {
	// name of the step, in metrics, the decision log and explanations.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`
	// when is a CEL expression whose value is true for the requests that the step is for. Without it, the step is for all requests.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	When string `json:"when,omitempty"`
	// refuse answers the request with an error.
	// +optional
	Refuse Refusal `json:"refuse,omitzero"`
	// call asks a service what to do with the request.
	// +optional
	Call HookCall `json:"call,omitzero"`
	// model that the request is for from now on, in place of the one that its client has named. A model that no pool serves is a failure
	// of the step.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Model string `json:"model,omitempty"`
	// priority of the request, a name of admission.priorities. The highest priority of the tenant's class still holds.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Priority string `json:"priority,omitempty"`
	// sessionExpression is a CEL expression whose value, a string, names the session in place of session.keys. An empty string leaves the
	// session as it is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SessionExpression string `json:"sessionExpression,omitempty"`
	// costLimit of each of the two expressions, in the cost units of CEL: about one for each operation, and one for ten bytes of text that
	// an operation reads. An expression that reaches it is stopped, and the step has failed.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +kubebuilder:default=10000
	// +optional
	CostLimit int32 `json:"costLimit,omitempty"`
	// failureMode defines what happens if the step fails, because an expression has no value, the model is not served or the service
	// does not answer: FailClose refuses the request, FailOpen goes on with the next step.
	// +kubebuilder:default=FailClose
	// +optional
	FailureMode FailureMode `json:"failureMode,omitempty"`
}

// HookCall asks a service about a request, by the data API of the Open Policy Agent: the service gets a POST of what expressions can
// read, and its result is a bool, or an object that refuses the request or sets its model, priority and session.
type HookCall struct {
	// url of the service, http or https, such as http://opa.policies:8181/v1/data/kvasir/request.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@\s]+(/[^?#\s]*)?(\?[^#\s]*)?$`
	// +required
	URL string `json:"url,omitempty"`
	// timeoutMilliseconds of the whole call, which delays each request that the step is for.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5000
	// +kubebuilder:default=100
	// +optional
	TimeoutMilliseconds int32 `json:"timeoutMilliseconds,omitempty"`
}

// Refusal is the answer to a request that is refused.
type Refusal struct {
	// status is the HTTP status.
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=503
	// +kubebuilder:validation:Enum=400;403;404;413;422;429;503
	// +kubebuilder:default=403
	// +optional
	Status int32 `json:"status,omitempty"`
	// message for the client.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +required
	Message string `json:"message,omitempty"`
}
