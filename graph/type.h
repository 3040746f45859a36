#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

// One extent: known (extent >= 0), or unknown with the model's symbol ("batch"; "" for none). Equal non-empty symbols
// are equal extents.
struct Dim {
  int64_t extent = -1;
  std::string symbol;
  bool known() const { return extent >= 0; }
  bool operator==(const Dim&) const = default;
};

// Plain row-major, or with dimension 1 (channels) split into blocks that lie innermost: NCHW with block 16 is stored
// as [N][ceil(C/16)][H][W][16]. Lanes past C hold anything, even NaN: no reader lets them flow into other lanes. dims
// are always the logical ones.
struct Layout {
  int channel_block = 0;  // 0: plain
  bool operator==(const Layout&) const = default;
};

struct ContainerType;

// What a graph knows of one of its values. Sequences, optionals and maps have DType::object and never a rank.
struct TensorType {
  DType dtype = DType::undefined;
  bool has_rank = false;
  std::vector<Dim> dims;
  Layout layout;
  std::shared_ptr<const ContainerType> container;  // of an object: what it is; null: not known

  static TensorType of(DType dtype, const Dims& dims);
  static TensorType unranked(DType dtype) { return {dtype, false, {}, {}}; }
  static TensorType sequence_of(TensorType element);
  static TensorType optional_of(TensorType element);
  static TensorType map_of(DType key, TensorType element);
  TensorType without_shape() const { return {dtype, false, {}, {}, container}; }
  bool is_object() const { return dtype == DType::object; }
  bool is_static() const;    // rank and every extent known
  bool fits_buffer() const;  // static, and the elements are plain bytes: no string, no object
  int rank() const { return static_cast<int>(dims.size()); }
  Dims extents() const;          // Requires: is_static().
  size_t storage_bytes() const;  // with channel padding of the layout. Requires: is_static().
  Dims storage_dims() const;     // plain: extents(); blocked: [N, ceil(C/b), spatial..., b]
  bool operator==(const TensorType& other) const;
};

struct ContainerType {
  enum class Kind : uint8_t { sequence, optional, map };
  Kind kind = Kind::sequence;
  TensorType element;            // of a map: of its values
  DType key = DType::undefined;  // of a map
  bool operator==(const ContainerType&) const = default;
};

// False when no value is of both types: shapes aside, element types or containers differ. An optional that holds
// something is a value of its element's type too.
bool may_agree(const TensorType& a, const TensorType& b);

// "float32[batch,3,224,224]", "float32[1,64,56,56]{c16}", "seq(float32[...])", "map(int64,float32[])"
std::string to_string(const TensorType& type);

}  // namespace lathe
