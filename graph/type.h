#pragma once
#include <cstdint>
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

struct TensorType {
  DType dtype = DType::undefined;
  bool has_rank = false;
  std::vector<Dim> dims;
  Layout layout;

  static TensorType of(DType dtype, const Dims& dims);
  static TensorType unranked(DType dtype) { return {dtype, false, {}, {}}; }
  bool is_static() const;  // rank and every extent known
  int rank() const { return static_cast<int>(dims.size()); }
  Dims extents() const;          // Requires: is_static().
  size_t storage_bytes() const;  // with channel padding of the layout. Requires: is_static().
  Dims storage_dims() const;     // plain: extents(); blocked: [N, ceil(C/b), spatial..., b]
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& type);  // "float32[batch,3,224,224]", "float32[1,64,56,56]{c16}"

}  // namespace lathe
