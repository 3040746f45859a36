#pragma once
// A depthwise convolution of bytes bound to its kernels.
#include <string>
#include <vector>

#include "jit/kernels/conv/conv_depthwise_int8.h"
#include "ops/conv/conv_program.h"
#include "ops/int8/int8_pack.h"
#include "src/base/divide.h"

namespace lathe {

struct DepthwiseInt8Problem {
  int64_t batch = 1, channels = 1;
  ConvShape shape;  // blocks of its lanes
  Int8Dot dot = Int8Dot::pairs;
  bool is_signed = false;  // the input
  Isa isa = Isa::avx2;
  ConvEpilogue epilogue;
  Int8Store store = {DType::i32};

  int64_t blocks() const { return divide_up(channels, shape.lanes); }
  int64_t out_bytes() const { return bits_of(store.dtype) / 8; }
  int64_t source_block_bytes() const { return shape.y.in * shape.x.in * shape.lanes; }
  int64_t target_block_elements() const { return shape.y.out * shape.x.out * shape.lanes; }
  double flop() const;
};

// As few cycles as the instructions of a picture take.
DepthwiseInt8Plan choose_depthwise_int8_plan(const DepthwiseInt8Problem& problem);

struct DepthwiseInt8Arguments {
  const void* source = nullptr;
  const void* border = nullptr;   // a row of the input, all of the border's value
  const void* weights = nullptr;  // packed
  const int32_t* init = nullptr;  // padded to whole blocks
  void* target = nullptr;
  const void* operands[ConvEpilogue::kMaxOperands] = {};
};

class DepthwiseInt8Program {
 public:
  // `operand_batch_bytes`: from one image to the next in each operand of the epilogue. Throws JitError.
  DepthwiseInt8Program(DepthwiseInt8Problem problem, int threads, std::vector<int64_t> operand_batch_bytes);

  const DepthwiseInt8Problem& problem() const { return problem_; }
  std::string plan_text() const;
  std::string packing() const;  // names the order of the packed weights
  int64_t packed_bytes() const { return problem_.blocks() * block_weights(); }
  int64_t border_bytes() const { return problem_.shape.x.in * problem_.shape.lanes; }
  // `weights`: a row of [window] for each channel. `sums`: of each channel's packed values, padded.
  void pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed, int32_t* sums) const;

  int shares() const { return split_.count(); }
  void run(const DepthwiseInt8Arguments& arguments, int share) const noexcept;

 private:
  void make_kernels();
  int64_t block_weights() const;  // bytes
  void run_strip(const DepthwiseInt8Arguments& arguments, int64_t plane,
                 const DepthwiseInt8Strip& strip) const noexcept;

  DepthwiseInt8Problem problem_;
  DepthwiseInt8Plan plan_;
  DepthwiseReads reads_;
  ConvSplit split_;  // pixels: strips of each plane
  std::vector<int64_t> operand_batch_bytes_;
  DepthwiseInt8Kernels kernels_;
};

}  // namespace lathe
