package server

import (
	"errors"
	"flag"
	"fmt"
	neturl "net/url"
	"os"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/tokens/hub"
)

// hubOptions are the flags of the model hub.
type hubOptions struct {
	address, tokenFile, cache, ca, proxy string

	endpoint    *neturl.URL        // of address; nil without one
	authorities *certs.Authorities // of ca; nil without one
	through     *neturl.URL        // of proxy; nil without one
}

func (o *hubOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.address, "hub-endpoint", "", "`URL` of the model hub from which tokenizers of the types Auto and Hub are downloaded, such as https://huggingface.co or a mirror; empty downloads nothing")
	f.StringVar(&o.tokenFile, "hub-token-file", "", "`file` with a token of the hub, for repositories whose pool names no token; read again when it is needed")
	f.StringVar(&o.ca, "hub-ca", "", "`file` with certificates of authorities that sign the hub's, in PEM, or their text; those of the system are trusted as well. Read at the start")
	f.StringVar(&o.proxy, "hub-proxy", "", "`URL` of the proxy through which the hub is reached, http://HOST:PORT; the environment's proxies are not used")
	f.StringVar(&o.cache, "hub-cache", "", "`directory` for the files, in the layout of the Hugging Face cache; at most 1 GiB. Without --hub-endpoint, only files that are in it are used")
}

// wanted reports whether files of a hub are used.
func (o *hubOptions) wanted() bool { return o.cache != "" }

func (o *hubOptions) check() (err error) {
	if o.address == "" {
		if o.tokenFile != "" {
			return errors.New("--hub-token-file needs --hub-endpoint")
		}
		if o.ca != "" {
			return errors.New("--hub-ca needs --hub-endpoint")
		}
		if o.proxy != "" {
			return errors.New("--hub-proxy needs --hub-endpoint")
		}
		return nil
	}
	if o.endpoint, err = hub.ParseEndpoint(o.address); err != nil {
		return fmt.Errorf("--hub-endpoint: %w", err)
	}
	if o.cache == "" {
		return errors.New("--hub-endpoint needs --hub-cache: without it, files would be downloaded again at each start")
	}
	if o.tokenFile != "" && !hub.Private(o.endpoint) {
		return errors.New("--hub-token-file needs an https --hub-endpoint: over http, others could read the token")
	}
	if o.proxy != "" {
		if o.through, err = hub.ParseProxy(o.proxy); err != nil {
			return fmt.Errorf("--hub-proxy: %w", err)
		}
	}
	return o.checkAuthorities()
}

func (o *hubOptions) checkAuthorities() error {
	if o.ca == "" {
		return nil
	}
	if o.endpoint.Scheme != "https" {
		return errors.New("--hub-ca needs an https --hub-endpoint: over http, no certificate is looked at")
	}
	text := o.ca
	if !strings.Contains(text, "-----BEGIN") {
		data, err := os.ReadFile(o.ca)
		if err != nil {
			return fmt.Errorf("--hub-ca: %w", err)
		}
		text = string(data)
	}
	var err error
	if o.authorities, err = certs.ParseAuthorities(text); err != nil {
		return fmt.Errorf("--hub-ca: %w", err)
	}
	return nil
}
