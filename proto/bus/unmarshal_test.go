package bus

import (
	"bytes"
	"testing"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// boxType is a message with a field of each kind that matters here:
//
//	message Box {
//	  bytes data = 1; repeated bytes list = 2; string text = 3; int64 number = 4; Box box = 5;
//	  oneof choice { bytes some = 6; Box other = 7; }
//	  repeated Box boxes = 8;
//	}
func boxType(t testing.TB) protoreflect.MessageType {
	t.Helper()
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, repeated bool) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if repeated {
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		if kind == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE {
			f.TypeName = new(".Box")
		}
		if number == 6 || number == 7 {
			f.OneofIndex = new(int32)
		}
		return f
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("box.proto"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: new("Box"),
			Field: []*descriptorpb.FieldDescriptorProto{
				field("data", 1, descriptorpb.FieldDescriptorProto_TYPE_BYTES, false),
				field("list", 2, descriptorpb.FieldDescriptorProto_TYPE_BYTES, true),
				field("text", 3, descriptorpb.FieldDescriptorProto_TYPE_STRING, false),
				field("number", 4, descriptorpb.FieldDescriptorProto_TYPE_INT64, false),
				field("box", 5, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, false),
				field("some", 6, descriptorpb.FieldDescriptorProto_TYPE_BYTES, false),
				field("other", 7, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, false),
				field("boxes", 8, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, true),
			},
			OneofDecl: []*descriptorpb.OneofDescriptorProto{{Name: new("choice")}},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dynamicpb.NewMessageType(file.Messages().Get(0))
}

// wire writes fields of bytes.
func wire(fields ...any) (b []byte) {
	for i := 0; i < len(fields); i += 2 {
		b = protowire.AppendTag(b, protowire.Number(fields[i].(int)), protowire.BytesType)
		b = protowire.AppendBytes(b, fields[i+1].([]byte))
	}
	return b
}

// FuzzUnmarshalShared: a message is what it would be without shared memory, and
// what cannot be read cannot be read either way.
func FuzzUnmarshalShared(f *testing.F) {
	large, small := bytes.Repeat([]byte{'x'}, 20), []byte("y")
	for _, b := range [][]byte{
		nil,
		wire(1, large),
		wire(1, large, 1, small),
		wire(3, small, 1, large, 3, large),
		wire(2, large, 2, small),
		wire(5, wire(1, large), 5, wire(3, large)),           // merged
		wire(6, large, 7, wire(1, large), 6, small),          // the last one counts
		wire(7, wire(1, large), 6, large, 7, wire(3, large)), // and what was there is gone
		wire(8, wire(1, large), 8, wire(1, large)),
		wire(5, wire(5, wire(5, wire(5, wire(5, wire(1, large)))))),
		wire(90, large, 1, large), // not known
		wire(1, large)[:10],
		wire(5, wire(1, large)[:10]),
		wire(3, append([]byte{0xff}, large...)),
		protowire.AppendVarint(protowire.AppendTag(wire(1, large), 1, protowire.VarintType), 7),
	} {
		f.Add(b)
	}
	box := boxType(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		want, got := box.New().Interface(), box.New().Interface()
		wantErr := proto.Unmarshal(bytes.Clone(b), want)
		gotErr := unmarshalShared(b, got.ProtoReflect(), 8, 2)
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v, want %v", b, gotErr, wantErr)
		}
		if wantErr == nil && !proto.Equal(got, want) {
			t.Fatalf("%x: %v, want %v", b, got, want)
		}
	})
}

// TestUnmarshalSharesMemory: a large field is a part of the message it came in,
// and what is appended to it does not run over into the rest.
func TestUnmarshalSharesMemory(t *testing.T) {
	t.Parallel()
	box := boxType(t)
	b := wire(7, wire(1, bytes.Repeat([]byte{'x'}, sharedBytes), 3, []byte("rest")))
	m := box.New()
	if err := unmarshal(message{first: b, size: len(b)}, m.Interface()); err != nil {
		t.Fatal(err)
	}
	fields := box.Descriptor().Fields()
	inner := m.Get(fields.ByName("other")).Message()
	data := inner.Get(fields.ByName("data")).Bytes()
	at := bytes.IndexByte(b, 'x')
	if len(data) != sharedBytes || unsafe.SliceData(data) != &b[at] {
		t.Errorf("%d bytes, which are not those of the message", len(data))
	}
	if cap(data) != len(data) {
		t.Errorf("%d bytes with room for %d", len(data), cap(data))
	}
	if text := inner.Get(fields.ByName("text")).String(); text != "rest" {
		t.Errorf("the field behind it is %q", text)
	}
}
