// Command proto generates Go code from .proto files without a protoc: it compiles them in process and hands them to
// the plugins, which are tools of this module.
//
//	go run . ROOT FILE...     paths of the files are relative to ROOT, and the code is written beside them
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugins to run, and whether each wants a file.
var plugins = map[string]func(protoreflect.FileDescriptor) bool{
	"protoc-gen-go":      func(f protoreflect.FileDescriptor) bool { return f.Messages().Len()+f.Enums().Len() > 0 },
	"protoc-gen-go-grpc": func(f protoreflect.FileDescriptor) bool { return f.Services().Len() > 0 },
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: proto ROOT FILE...")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "proto:", err)
		os.Exit(1)
	}
}

func generate(root string, names []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return err
	}
	var all []*descriptorpb.FileDescriptorProto // every file after those that it imports
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		all = append(all, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	for plugin, wants := range plugins {
		request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative"), ProtoFile: all}
		for _, f := range files {
			if wants(f) {
				request.FileToGenerate = append(request.FileToGenerate, f.Path())
			}
		}
		if len(request.FileToGenerate) == 0 {
			continue
		}
		if err := run(plugin, request, root); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

func run(plugin string, request *pluginpb.CodeGeneratorRequest, root string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.Command("go", "tool", plugin)
	command.Stdin, command.Stderr = bytes.NewReader(in), os.Stderr
	out, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
