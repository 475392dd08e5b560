package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
)

const aboutUI = `Serves the picker's page to browsers of this machine, at an address that is printed, until it is interrupted. The connection to the
picker goes through the API server, and the picker is shown a token: the browser needs none. Of several replicas it is the
first's page.`

// uiEnd is how long answers can take at the end.
const uiEnd = time.Second

// ui is the command of that name.
func ui(std stdio) *cobra.Command {
	c := command.New("ui [POOL]", "The picker's page, in a browser", aboutUI)
	k := newCluster(c, std)
	k.pickers(c)
	port := c.Flags().Int("port", 0, "port of 127.0.0.1 to serve at; 0 takes a free one")
	argument(c, "pool", true)
	c.ValidArgsFunction = k.one(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		pickers, err := k.pickersOf(c.Context(), first(args))
		if err != nil {
			return err
		}
		if _, err := pickers[0].Status(c.Context()); err != nil {
			return err
		}
		listener, err := (&net.ListenConfig{}).Listen(c.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(*port)))
		if err != nil {
			return fmt.Errorf("listening: %w", err)
		}
		_, at, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return err
		}
		server := &http.Server{Handler: pickers[0].Page("127.0.0.1:"+at, "localhost:"+at), ReadHeaderTimeout: 10 * time.Second}
		fmt.Fprintf(std.Out, "http://127.0.0.1:%s/ is the page of picker %s\n", at, pickers[0].Name)
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		select {
		case err := <-served:
			return err
		case <-c.Context().Done():
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), uiEnd)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err := server.Close(); err != nil { // what still streams
			return err
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
	return c
}
