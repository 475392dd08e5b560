package apicases

// fleets are cases of PickerFleets. Their pickers have the settings of a pool's.
func fleets() Group {
	return Group{"PickerFleet", map[string]Case{
		"a fleet with all defaults":           {Spec: "{}"},
		"a fleet without a spec":              {},
		"a fleet with a long name":            {Name: "a23456789-123456789-123456789-123456789-12345", Spec: "{}"},
		"a fleet with a name that is longer":  {Name: "a23456789-123456789-123456789-123456789-123456", Spec: "{}", Want: "at most 45 characters"},
		"a fleet whose name has a dot":        {Name: "a.b", Spec: "{}", Want: "a DNS label"},
		"a fleet whose name begins otherwise": {Name: "1a", Spec: "{}", Want: "starts with a letter"},
		"a fleet of three":                    {Spec: "replicas: 3"},
		"a fleet of none":                     {Spec: "replicas: 0", Want: "spec.replicas"},
		"a fleet with an index":               {Spec: "indexMemory: 16Mi"},
		"a fleet with a small index":          {Spec: "indexMemory: 1Mi", Want: "indexMemory must be at least"},
		"a fleet with small bodies":           {Spec: "maxRequestBody: 1Ki"},
		"a fleet with bodies of no bytes":     {Spec: "maxRequestBody: 0", Want: "maxRequestBody must be"},
		"a fleet with a certificate":          {Spec: "tls: {type: Secret, secretRef: {name: x}}"},
		"a fleet that lacks a certificate":    {Spec: "tls: {type: Secret}", Want: "secretRef is required"},
		"a fleet with an issuer":              {Spec: "tls: {type: CertManager, issuerRef: {name: x}}"},
		"a fleet that lacks an issuer":        {Spec: "tls: {type: CertManager}", Want: "issuerRef is required"},
		"a fleet without TLS":                 {Spec: "tls: {}"},
		"a fleet that logs decisions":         {Spec: "decisionLog: {size: 4Mi}"},
		"a fleet that logs few decisions":     {Spec: "decisionLog: {size: 1Mi}", Want: "size must be at least 4Mi"},
		"a fleet with a log of some size":     {Spec: "decisionLog: {}"},
		"a fleet that records use":            {Spec: "usageRecords: {file: {size: 4Mi}}"},
		"a fleet that records little use":     {Spec: "usageRecords: {file: {size: 1Mi}}", Want: "size must be at least 4Mi"},
		"a fleet with records of some size":   {Spec: "usageRecords: {file: {}}"},
		"a fleet that exports use":            {Spec: "usageRecords: {otlp: {endpoint: 'http://collector:4317'}}"},
		"a fleet that traces":                 {Spec: "tracing: {endpoint: 'http://collector:4317'}"},
		"a fleet of an island":                {Spec: "island: here"},
		"a fleet with TLS for clients":        {Spec: "proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: ca.crt}}"},
		"a fleet whose clients have no CA":    {Spec: "proxyTLS: {secretRef: {name: s}, clientCertificates: Required}", Want: "clientCertificates needs clientCASecretRef"},
		"a fleet with TLS of no proxy":        {Spec: "proxy: Disabled\nproxyTLS: {secretRef: {name: s}}", Want: "proxyTLS needs the proxy"},
		"a fleet behind a gateway":            {Spec: "gateway: {parentRefs: [{name: g}], hostnames: [a.example.com], failureMode: FailOpen}"},
		"a fleet whose gateway others keep":   {Spec: "gateway: {mode: Existing}"},
		"a fleet that no gateway sees":        {Spec: "gateway: {mode: Disabled}"},
		"a fleet with a route of others":      {Spec: "gateway: {mode: Existing, parentRefs: [{name: g}]}", Want: "parentRefs need mode Auto"},
		"a fleet with names of no route":      {Spec: "gateway: {hostnames: [a.example.com]}", Want: "hostnames need parentRefs"},
		"a fleet with answers of a time":      {Spec: "gateway: {requestTimeout: Limited, requestTimeoutSeconds: 60}"},
		"a fleet with answers of no time":     {Spec: "gateway: {requestTimeout: Limited}", Want: "requestTimeoutSeconds is required"},
		"a fleet with lists of destinations":  {Spec: "gateway: {destinations: Ordered}", Want: "unknown field"},
		"a fleet has no mode":                 {Spec: "mode: Managed", Want: "unknown field"},
	}}
}

// poolsOfFleets are cases of pools that leave their pickers to a fleet.
func poolsOfFleets() Group {
	return Group{"InferencePool", map[string]Case{
		"a pool of the default fleet":            {Spec: adopted + "picker: {mode: Fleet}"},
		"a pool of a fleet":                      {Spec: adopted + "picker: {mode: Fleet, fleetRef: {name: big}}"},
		"a pool with pickers of its own":         {Spec: adopted + "picker: {fleetRef: {name: big}}", Want: "fleetRef is only for mode Fleet"},
		"a pool of a fleet that cannot be":       {Spec: adopted + "picker: {mode: Fleet, fleetRef: {name: a.b}}", Want: "must be the name of a PickerFleet"},
		"a pool of a fleet and of others":        {Spec: adopted + "picker: {mode: Fleet, external: {serviceName: x}}", Want: "external is required when"},
		"a pool of a fleet that traces":          {Spec: adopted + "picker: {mode: Fleet, tracing: {endpoint: 'http://c:4317'}}", Want: "fleets have fields"},
		"a pool of a fleet with TLS of its own":  {Spec: adopted + "picker: {mode: Fleet, proxyTLS: {secretRef: {name: s}}}", Want: "fleets have fields"},
		"a pool that moves into a fleet":         {Old: adopted, Spec: adopted + "picker: {mode: Fleet}"},
		"a pool of a fleet that has a directory": {Spec: selector + "model: {name: m, tokenizer: {type: Directory, directory: {path: x}}}\npicker: {mode: Fleet}", Want: "managed pickers lack"},
	}}
}
