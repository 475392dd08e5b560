package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

const (
	// filePart is how much of a model's files goes into one message, in bytes.
	filePart = 1 << 20
	// maxFailure bounds the reason why a reporter has no files, in bytes.
	maxFailure = 512
	// filesStall and filesTimeout bound the time of a transfer: between two messages, and of all. While one reporter sends files, the
	// others of its pool wait.
	filesStall, filesTimeout = 15 * time.Second, 2 * time.Minute
)

// HandOver implements the service.
func (f *Library) HandOver(stream grpc.BidiStreamingServer[FilesMessage, FilesAnswer]) error {
	who, err := f.Auth.Authenticate(stream.Context())
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "%v", err)
	}
	in := f.patient(stream)
	first, err := in.receive()
	if err != nil {
		return err
	}
	offer := first.GetOffer()
	switch {
	case offer == nil:
		return status.Error(codes.InvalidArgument, "the first message is no offer")
	case !who.Is(offer.GetPod()):
		return status.Errorf(codes.PermissionDenied, "pod %q is not the reporter's own", offer.GetPod())
	}
	pool, ok := f.PoolOf(offer.GetPod())
	if !ok {
		return stream.Send(&FilesAnswer{})
	}
	if why := offer.GetFailure(); why != "" {
		f.failed(pool, offer.GetPod(), why)
		return stream.Send(&FilesAnswer{})
	}
	if err := checkOffer(offer); err != nil {
		f.failed(pool, offer.GetPod(), err.Error())
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	wanted, held := f.offered(pool, offer)
	if err := stream.Send(&FilesAnswer{Wanted: wanted, Held: held}); err != nil || !wanted {
		if wanted {
			f.took(pool, offer, nil, err)
		}
		return err
	}
	set, err := receiveFiles(in, offer)
	if f.took(pool, offer, set, err); err != nil {
		return err
	}
	f.Log.Info("Model files received from a reporter", "pool", pool, "pod", offer.GetPod(), "bytes", set.Bytes())
	f.OnFiles(pool)
	return stream.Send(&FilesAnswer{Held: true})
}

// checkOffer refuses what is too large before anything of it is taken.
func checkOffer(o *FilesOffer) error {
	total := uint64(0)
	names := modelfiles.Set{}
	for _, file := range o.GetFiles() {
		total += min(file.GetSize(), modelfiles.MaxBytes+1)
		names[file.GetName()] = nil
	}
	if _, err := hex.DecodeString(o.GetHash()); err != nil || len(o.GetHash()) != 2*sha256.Size {
		return errors.New("the hash is no SHA-256")
	}
	if total > modelfiles.MaxBytes || len(names) != len(o.GetFiles()) {
		return fmt.Errorf("%d files with more than %d bytes, or with duplicate names", len(o.GetFiles()), modelfiles.MaxBytes)
	}
	return names.Check()
}

// patient receives the messages of a stream, within limits of time.
type patient struct {
	stream grpc.BidiStreamingServer[FilesMessage, FilesAnswer]
	stall  time.Duration
	ends   time.Time
}

func (f *Library) patient(stream grpc.BidiStreamingServer[FilesMessage, FilesAnswer]) *patient {
	p := &patient{stream, filesStall, time.Now().Add(filesTimeout)}
	if f.stall > 0 {
		p.stall = f.stall
	}
	return p
}

// receive receives the next message. After an error the handler must return, which ends a receiving that is still under way.
func (p *patient) receive() (*FilesMessage, error) {
	type result struct {
		message *FilesMessage
		err     error
	}
	got := make(chan result, 1)
	go func() {
		m, err := p.stream.Recv()
		got <- result{m, err}
	}()
	wait := time.NewTimer(min(p.stall, time.Until(p.ends)))
	defer wait.Stop()
	select {
	case r := <-got:
		return r.message, r.err
	case <-wait.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no message within %s, or not all within %s", p.stall, filesTimeout)
	}
}

// receiveFiles takes the contents of the files that were offered.
func receiveFiles(in *patient, offer *FilesOffer) (modelfiles.Set, error) {
	set := modelfiles.Set{}
	var part []byte
	for _, file := range offer.GetFiles() {
		var data []byte // it grows with what is sent, not with what was announced
		for uint64(len(data)) < file.GetSize() {
			if len(part) == 0 {
				m, err := in.receive()
				if errors.Is(err, io.EOF) {
					return nil, status.Error(codes.DataLoss, "fewer bytes than were offered")
				}
				if err != nil {
					return nil, err
				}
				if part = m.GetPart(); len(part) == 0 || len(part) > filePart {
					return nil, status.Error(codes.InvalidArgument, "an empty part, or one that is too large")
				}
			}
			n := min(uint64(len(part)), file.GetSize()-uint64(len(data)))
			data, part = append(data, part[:n]...), part[n:]
		}
		set[file.GetName()] = data
	}
	if len(part) > 0 || set.Hash() != offer.GetHash() {
		return nil, status.Error(codes.DataLoss, "the contents are not those that were offered")
	}
	return set, nil
}

// HandOver offers the files of a model that are listed, and sends them if the picker wants them: only then is send called, with
// what takes the contents in the order of the listing. held reports whether the picker has them now; otherwise it might want
// them another time.
func (c *Client) HandOver(
	ctx context.Context, pod string, list modelfiles.Listing, send func(put func([]byte) error) error,
) (held bool, err error) {
	offer := &FilesOffer{Pod: pod, Hash: list.Hash}
	for i, name := range list.Names {
		offer.Files = append(offer.Files, &FileInfo{Name: name, Size: uint64(list.Sizes[i])})
	}
	return c.offer(ctx, offer, send)
}

// NoFiles reports why there are no files to hand over.
func (c *Client) NoFiles(ctx context.Context, pod string, why error) error {
	_, err := c.offer(ctx, &FilesOffer{Pod: pod, Failure: shortened(why.Error())}, nil)
	return err
}

// shortened is a reason within its bound, and valid for a message.
func shortened(why string) string {
	return strings.ToValidUTF8(why[:min(len(why), maxFailure)], "")
}

func (c *Client) offer(ctx context.Context, offer *FilesOffer, send func(put func([]byte) error) error) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*filesTimeout)
	defer cancel()
	stream, err := NewModelFilesClient(c.conn).HandOver(ctx)
	if err != nil {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	if err := stream.Send(&FilesMessage{Kind: &FilesMessage_Offer{Offer: offer}}); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	answer, err := stream.Recv()
	if err != nil {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	if !answer.GetWanted() || send == nil {
		return answer.GetHeld(), nil
	}
	var refused error
	err = send(func(part []byte) error {
		refused = stream.Send(&FilesMessage{Kind: &FilesMessage_Part{Part: bytes.Clone(part)}})
		return refused
	})
	if errors.Is(refused, io.EOF) { // the answer has the reason
		err = nil
	} else if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		return false, fmt.Errorf("handing the model's files over: %w", err)
	}
	if answer, err = stream.Recv(); err != nil {
		return false, fmt.Errorf("handing the model's files over: %w", err)
	}
	return answer.GetHeld(), nil
}
