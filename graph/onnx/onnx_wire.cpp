#include "graph/onnx/onnx_wire.h"

#include <limits>

#include "lathe/error.h"

namespace lathe::wire {
namespace {

enum class Message { model, function, graph, node, attribute, sparse_tensor, tensor, other };

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr size_t kMaxSkeleton = std::numeric_limits<int32_t>::max();

// What a field of a message holds, if tensors can be found below it.
Message child_of(Message message, uint64_t field) {
  switch (message) {
    case Message::model:
      return field == 7 ? Message::graph : field == 25 ? Message::function : Message::other;
    case Message::function:
      return field == 7 ? Message::node : field == 11 ? Message::attribute : Message::other;
    case Message::graph:
      return field == 1    ? Message::node
             : field == 5  ? Message::tensor
             : field == 15 ? Message::sparse_tensor
                           : Message::other;
    case Message::node:
      return field == 5 ? Message::attribute : Message::other;
    case Message::attribute:
      if (field == 5 || field == 10) return Message::tensor;
      if (field == 6 || field == 11) return Message::graph;
      return field == 22 || field == 23 ? Message::sparse_tensor : Message::other;
    case Message::sparse_tensor:
      return field == 1 || field == 2 ? Message::tensor : Message::other;
    case Message::tensor:
    case Message::other:
      return Message::other;
  }
  return Message::other;
}

// Fields that Lathe never reads: documentation and training.
bool is_ignored(Message message, uint64_t field) {
  switch (message) {
    case Message::model:
      return field == 6 || field == 20;
    case Message::function:
      return field == 8;
    case Message::graph:
      return field == 10;
    case Message::node:
      return field == 6;
    case Message::attribute:
      return field == 13;
    case Message::tensor:
      return field == 12;
    default:
      return false;
  }
}

bool is_payload(uint64_t field, size_t size) {
  return size >= kSmallestPayload && (field == 9 || field == 4 || field == 10);
}

class Scanner {
 public:
  explicit Scanner(int depth) : depth_(depth) {}

  Skeleton run(std::string_view bytes, Message message) {
    copy(bytes, message, 0);
    if (result_.bytes.size() >= kMaxSkeleton) {
      throw Error(ErrorCode::limit, "the model has 2 GiB or more beside its tensors' raw data");
    }
    return std::move(result_);
  }

 private:
  struct Field {
    uint64_t number;
    WireType type;
    std::string_view whole;    // tag and value
    std::string_view content;  // of kBytes
  };

  [[noreturn]] static void malformed(const char* what) {
    throw Error(ErrorCode::invalid_model, std::string("not an ONNX file: ") + what);
  }

  static uint64_t read_varint(std::string_view& bytes) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (bytes.empty()) malformed("the bytes end within a number");
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    malformed("a number has more than ten bytes");
  }

  static Field read_field(std::string_view& bytes) {
    const char* start = bytes.data();
    const uint64_t tag = read_varint(bytes);
    Field field{tag >> 3, static_cast<WireType>(tag & 7), {}, {}};
    if (field.number == 0 || field.number > 536'870'911) malformed("a field has a number out of range");
    uint64_t size = 0;
    switch (field.type) {
      case kVarint:
        read_varint(bytes);
        break;
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      case kBytes:
        size = read_varint(bytes);
        break;
      default:
        malformed("a field has a wire type that ONNX does not use");
    }
    if (size > bytes.size()) malformed("a field reaches beyond the end (is the file truncated?)");
    field.content = bytes.substr(0, size);
    bytes.remove_prefix(size);
    field.whole = {start, static_cast<size_t>(bytes.data() - start)};
    return field;
  }

  // Appends a copy of the message without its payloads. The recursion is as deep as the graphs are nested.
  void copy(std::string_view bytes, Message message, int depth) {
    if (depth > depth_) {
      throw Error(ErrorCode::limit, "graphs are nested more than " + std::to_string(depth_ - 1) + " deep");
    }
    bool has_payload = false;
    while (!bytes.empty()) {
      const Field field = read_field(bytes);
      if (is_ignored(message, field.number)) continue;
      const Message child = field.type == kBytes ? child_of(message, field.number) : Message::other;
      if (child != Message::other) {
        copy_child(field, child, child == Message::graph ? depth + 1 : depth);
      } else if (message == Message::tensor && field.type == kBytes && !has_payload &&
                 is_payload(field.number, field.content.size())) {
        has_payload = true;
        cut(field);
      } else {
        result_.bytes.append(field.whole);
      }
    }
  }

  void copy_child(const Field& field, Message child, int depth) {
    write_varint(field.number << 3 | kBytes);
    // The length is known afterwards: it is written as a varint of fixed size, padded by continuation bits.
    constexpr size_t kLengthBytes = 5;
    const size_t length_at = result_.bytes.size();
    result_.bytes.append(kLengthBytes, '\0');
    copy(field.content, child, depth);
    uint64_t length = result_.bytes.size() - length_at - kLengthBytes;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      result_.bytes[length_at + i] = static_cast<char>((length & 0x7f) | (i + 1 < kLengthBytes ? 0x80 : 0));
      length >>= 7;
    }
  }

  void cut(const Field& field) {
    write_varint(uint64_t{kPayloadField} << 3 | kVarint);
    write_varint(result_.payloads.size());
    result_.payloads.push_back({field.content, static_cast<int>(field.number)});
  }

  void write_varint(uint64_t value) {
    while (value >= 0x80) {
      result_.bytes.push_back(static_cast<char>((value & 0x7f) | 0x80));
      value >>= 7;
    }
    result_.bytes.push_back(static_cast<char>(value));
  }

  int depth_;
  Skeleton result_;
};

}  // namespace

Skeleton skeleton_of_model(std::string_view bytes, int depth) { return Scanner(depth).run(bytes, Message::model); }

Skeleton skeleton_of_tensor(std::string_view bytes) { return Scanner(0).run(bytes, Message::tensor); }

}  // namespace lathe::wire
