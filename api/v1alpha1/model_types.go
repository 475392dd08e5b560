package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ModelName is a name that requests may use for a model or an adapter: 1 to 256 characters, no blanks.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:Pattern=`^\S+$`
type ModelName string

// Model is the base model of a pool, its names, its adapters and its tokenizer.
//
// +kubebuilder:validation:XValidation:rule="!has(self.aliases) || !(self.name in self.aliases)",message="aliases must not repeat model.name"
// +kubebuilder:validation:XValidation:rule="!has(self.tokenizer) || !has(self.tokenizer.type) || self.tokenizer.type != 'Hub' || (has(self.tokenizer.hub) && has(self.tokenizer.hub.repository)) || (self.name.matches('^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?(/[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?)?$') && !self.name.contains('..') && !self.name.contains('--'))",message="model.name is no name of a repository: set tokenizer.hub.repository"
// +kubebuilder:validation:XValidation:rule="!has(self.adapters) || !has(self.adapters.names) || !self.adapters.names.exists(n, n == self.name || (has(self.aliases) && n in self.aliases))",message="an adapter cannot have the name or an alias of the base model"
type Model struct {
	// name is the canonical served name. It is part of every block key and cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="model.name is immutable: a pool serves one base model; make a new pool and move the route"
	// +required
	Name ModelName `json:"name,omitempty"`
	// aliases are further served names of the same weights, at most 16. They share the keys of name.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	Aliases []ModelName `json:"aliases,omitempty"`
	// adapters are the LoRA adapters of the model.
	// +kubebuilder:default={discovery: Enabled}
	// +optional
	Adapters Adapters `json:"adapters,omitzero"`
	// tokenizer says where exact tokens come from. Absent, files of the model are looked for.
	// +kubebuilder:default={type: Auto}
	// +optional
	Tokenizer Tokenizer `json:"tokenizer,omitzero"`
}

// Adapters are the LoRA adapters of a pool's model.
//
// +kubebuilder:validation:MinProperties=1
type Adapters struct {
	// discovery controls whether adapter names are learnt from the engines' model lists.
	// +kubebuilder:default=Enabled
	// +optional
	Discovery Switch `json:"discovery,omitempty"`
	// names are adapters known before any pod has loaded them, at most 256.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	// +optional
	Names []ModelName `json:"names,omitempty"`
}

// Switch turns something on or off.
//
// +kubebuilder:validation:Enum=Enabled;Disabled
type Switch string

// The positions of a Switch.
const (
	Enabled  Switch = "Enabled"
	Disabled Switch = "Disabled"
)

// Tokenizer says where the exact tokens of a request come from.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.volume) == (self.type == 'Volume')",message="volume is required when type is Volume, and only then"
// +kubebuilder:validation:XValidation:rule="has(self.directory) == (self.type == 'Directory')",message="directory is required when type is Directory, and only then"
// +kubebuilder:validation:XValidation:rule="has(self.reporter) == (self.type == 'Reporter')",message="reporter is required when type is Reporter, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.hub) || self.type == 'Hub' || self.type == 'Auto'",message="hub is only for the types Auto and Hub"
type Tokenizer struct {
	// type selects the source: Auto uses files of the model if they are found, and asks an engine of the pool otherwise. Reporters
	// hand over those that the engines have on volumes. Otherwise it looks in the installation's model hub, if there is one, for the
	// repository that the engines have the model from, or model.name if it is ORGANIZATION/NAME. Engine asks an engine of the pool,
	// Volume mounts the model files into the picker, Reporter lets the reporters hand them over, Hub lets the picker download them
	// from the installation's model hub, None matches approximately. Directory reads them below --model-root of pickers that are not
	// managed.
	// +kubebuilder:default=Auto
	// +optional
	Type TokenizerType `json:"type,omitempty"`
	// volume is mounted into the picker; only with type Volume.
	// +optional
	Volume *TokenizerVolume `json:"volume,omitempty"`
	// reporter is where the reporter finds the files in the engine's pod; only with type Reporter.
	// +optional
	Reporter TokenizerDirectory `json:"reporter,omitzero"`
	// directory is a path below the picker's --model-root; only with type Directory.
	// +optional
	Directory TokenizerDirectory `json:"directory,omitzero"`
	// hub says which files of the model hub are used; only with the types Auto and Hub. Absent, type Hub uses those of the
	// repository model.name.
	// +optional
	Hub TokenizerHub `json:"hub,omitzero"`
	// chatTemplate is a file below the model directory that holds the chat template. Absent, the tokenizer's own.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('..') && !self.startsWith('/')",message="must be a relative path without '..'"
	// +optional
	ChatTemplate string `json:"chatTemplate,omitempty"`
}

// TokenizerType names a source of exact tokens.
//
// +kubebuilder:validation:Enum=Auto;Engine;Volume;Reporter;Directory;Hub;None
type TokenizerType string

// The sources of tokens.
const (
	TokenizerAuto          TokenizerType = "Auto"
	TokenizerFromEngine    TokenizerType = "Engine"
	TokenizerFromVolume    TokenizerType = "Volume"
	TokenizerFromReporter  TokenizerType = "Reporter"
	TokenizerFromDirectory TokenizerType = "Directory"
	TokenizerFromHub       TokenizerType = "Hub"
	TokenizerNone          TokenizerType = "None"
)

// TokenizerVolume is a volume with model files: exactly one of a claim, an image and a ConfigMap.
//
// +kubebuilder:validation:ExactlyOneOf=persistentVolumeClaim;image;configMap
type TokenizerVolume struct {
	// persistentVolumeClaim names a claim of the same namespace. It is mounted read-only.
	// +optional
	PersistentVolumeClaim LocalName `json:"persistentVolumeClaim,omitzero"`
	// image is an OCI image or artifact that holds the files.
	// +optional
	Image *corev1.ImageVolumeSource `json:"image,omitempty"`
	// configMap names a ConfigMap of the same namespace. It holds at most 1 MiB, less than most tokenizers need.
	// +optional
	ConfigMap LocalName `json:"configMap,omitzero"`
	// path of the model directory below the volume's root. Absent, the root.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.contains('..') && !self.startsWith('/')",message="must be a relative path without '..'"
	// +optional
	Path string `json:"path,omitempty"`
}

// TokenizerDirectory is a directory with model files.
type TokenizerDirectory struct {
	// path of the model directory: as the engine sees it for a reporter, below the picker's --model-root otherwise.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="must not contain '..'"
	// +required
	Path string `json:"path,omitempty"`
}

// TokenizerHub is a repository of the model hub that the installation has chosen. The pool chooses no server.
//
// +kubebuilder:validation:MinProperties=1
type TokenizerHub struct {
	// repository is NAME or ORGANIZATION/NAME. Absent, model.name for type Hub; type Auto finds it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=193
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?(/[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?)?$') && !self.contains('..') && !self.contains('--')",message="must be NAME or ORGANIZATION/NAME, without '..' and '--', and no URL"
	// +optional
	Repository string `json:"repository,omitempty"`
	// revision is a branch, a tag or a commit. Absent, the branch main.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_]([A-Za-z0-9._/-]{0,253}[A-Za-z0-9_])?$') && !self.contains('..') && !self.contains('/.') && !self.contains('//')",message="must be a branch, a tag or a commit, without '..'"
	// +optional
	Revision string `json:"revision,omitempty"`
	// tokenSecretRef names the token for a private or gated repository, as engines get it in HF_TOKEN. It is sent to the hub only.
	// +optional
	TokenSecretRef SecretKey `json:"tokenSecretRef,omitzero"`
}

// SecretNames are the names of the Secrets that the tokenizer needs.
func (t *Tokenizer) SecretNames() []string {
	if t.Hub.TokenSecretRef.Name == "" {
		return nil
	}
	return []string{t.Hub.TokenSecretRef.Name}
}
