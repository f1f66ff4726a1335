package bus

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// sharedBytes is the size from which a field of bytes stays in the memory of
	// the message that it came in. A result of 50 MiB would otherwise be there
	// twice.
	sharedBytes = 256 << 10
	// sharedDepth is how deep in a message such fields are looked for.
	sharedDepth = 4
)

// unmarshal reads a received message, which nobody else has.
func unmarshal(m message, dst any) error {
	pm, err := asProto(dst)
	if err != nil {
		return err
	}
	b := m.join()
	if len(b) < sharedBytes {
		err = proto.Unmarshal(b, pm)
	} else {
		proto.Reset(pm)
		err = unmarshalShared(b, pm.ProtoReflect(), sharedBytes, sharedDepth)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "failed to unmarshal the received message: %v", err)
	}
	return nil
}

// unmarshalShared adds the fields in b to m as proto.Unmarshal does, except
// that fields of bytes of a large size, in m and in the messages in it, are
// parts of b and no copies.
func unmarshalShared(b []byte, m protoreflect.Message, large, depth int) error {
	begin, at := 0, 0 // what lies between has not been added yet
	add := func() error {
		part := b[begin:at]
		if len(part) == 0 {
			return nil
		}
		return proto.UnmarshalOptions{Merge: true}.Unmarshal(part, m.Interface())
	}
	fields := m.Descriptor().Fields()
	for at < len(b) {
		num, typ, tag := protowire.ConsumeTag(b[at:])
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(num, typ, b[at+tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		field := fields.ByNumber(num)
		if typ != protowire.BytesType || size < large || !shareable(field, depth) {
			at += tag + size
			continue
		}
		if err := add(); err != nil { // in order: the last field of a oneof counts
			return err
		}
		value, _ := protowire.ConsumeBytes(b[at+tag:]) // it has a size, so it is whole
		at += tag + size
		begin = at
		if field.Kind() == protoreflect.BytesKind {
			m.Set(field, protoreflect.ValueOfBytes(slices.Clip(value)))
		} else if err := unmarshalShared(value, m.Mutable(field).Message(), large, depth-1); err != nil {
			return err
		}
	}
	return add()
}

// shareable says whether a field is one of bytes, or may hold one.
func shareable(field protoreflect.FieldDescriptor, depth int) bool {
	if field == nil || field.Cardinality() == protoreflect.Repeated {
		return false
	}
	return field.Kind() == protoreflect.BytesKind || field.Kind() == protoreflect.MessageKind && depth > 0
}
