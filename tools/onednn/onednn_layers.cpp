// Times convolutions and matrix products by oneDNN's primitives, for tools/compare_kernels.py.
//   onednn_layers SECONDS <layers
// reads "conv BATCH IN OUT GROUPS H W KH KW STRIDE_H STRIDE_W TOP LEFT BOTTOM RIGHT DILATION_H DILATION_W" or
// "gemm M N K", then what is fused into it, of "sum relu clip swish hardswish logistic gelu"; a layer a line. They are
// of float32; "conv_int8" and "gemm_int8" are of unsigned bytes times signed ones, with a scale for each output
// channel, and the type of the output, u8 or f32, stands before what is fused. Prints the median ms of each. The
// primitive chooses all layouts, so that nothing is reordered while the time runs; the source is warm, the weights come
// from memory. OMP_NUM_THREADS sets the threads.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <oneapi/dnnl/dnnl.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Arguments = std::unordered_map<int, memory>;

constexpr size_t kFlushedBytes = size_t{64} << 20;  // what is longer drives its own beginning out
constexpr size_t kModelBytes = size_t{64} << 20;    // of all weights, about: more pages than the CPU remembers
constexpr size_t kFewestRuns = 7, kMostCopies = 256, kLine = 64;

struct Context {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

memory filled(const Context& context, const memory::desc& desc) {
  memory made(desc, context.engine);
  if (desc.data.data_type != dnnl_f32) {
    auto* bytes = static_cast<uint8_t*>(made.get_data_handle());
    for (size_t i = 0; i < desc.get_size(); ++i) bytes[i] = static_cast<uint8_t>(i % 101);
    return made;
  }
  auto* values = static_cast<float*>(made.get_data_handle());
  // Small numbers that differ, so that no product is denormal or overflows.
  for (size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = 0.01F * static_cast<float>(i % 201) - 1.0F;
  return made;
}

void flush(const memory& used) {
  const auto* line = static_cast<const char*>(used.get_data_handle());
  const size_t bytes = std::min(used.get_desc().get_size(), kFlushedBytes);
  for (size_t at = 0; at < bytes; at += kLine) _mm_clflush(line + at);
  _mm_mfence();
}

// Median ms of `primitive`. No cache holds the weights, and their pages are looked up as those of a model's are.
double median_ms(Context& context, const dnnl::primitive& primitive, Arguments arguments, const memory::desc& weights,
                 double seconds) {
  const size_t count = std::clamp(kModelBytes / weights.get_size() + 1, size_t{2}, kMostCopies);
  std::vector<memory> copies;
  for (size_t i = 0; i < count; ++i) copies.push_back(filled(context, weights));
  for (const memory& copy : copies) flush(copy);
  std::vector<double> times;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t run = 0;; ++run) {
    const memory& used = copies[run % count];
    arguments[DNNL_ARG_WEIGHTS] = used;
    const auto from = std::chrono::steady_clock::now();
    primitive.execute(context.stream, arguments);
    context.stream.wait();
    const auto to = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::milli>(to - from).count());
    flush(used);
    if (times.size() >= kFewestRuns && std::chrono::duration<double>(to - begin).count() > seconds) break;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

using Type = memory::data_type;
struct Types {
  Type source = Type::f32, weights = Type::f32, target = Type::f32;
  bool is_int8() const { return source == Type::u8; }
};

memory::desc any_layout(const memory::dims& dims, Type type) { return {dims, type, memory::format_tag::any}; }

// The output's type of a layer of bytes.
Types read_types(bool is_int8, std::istream& line) {
  if (!is_int8) return {};
  std::string target;
  line >> target;
  return {Type::u8, Type::s8, target == "u8" ? Type::u8 : Type::f32};
}

// The words at a line's end, behind the scales of the output's second axis.
dnnl::primitive_attr fused(std::istream& line, const Types& types, int64_t channels) {
  static const std::unordered_map<std::string, dnnl::algorithm> kActivations = {
      {"relu", dnnl::algorithm::eltwise_relu},         {"clip", dnnl::algorithm::eltwise_clip},
      {"swish", dnnl::algorithm::eltwise_swish},       {"hardswish", dnnl::algorithm::eltwise_hardswish},
      {"logistic", dnnl::algorithm::eltwise_logistic}, {"gelu", dnnl::algorithm::eltwise_gelu_erf}};
  dnnl::post_ops ops;
  for (std::string word; line >> word;) {
    if (word == "sum") {
      ops.append_sum();
    } else {
      ops.append_eltwise(1, kActivations.at(word), word == "swish" ? 1.0F : 0.0F, word == "clip" ? 6.0F : 0.0F);
    }
  }
  dnnl::primitive_attr attributes;
  constexpr int kSecondAxis = 2;
  if (types.is_int8()) {
    attributes.set_output_scales(kSecondAxis, std::vector<float>(static_cast<size_t>(channels), 0.001F));
  }
  attributes.set_post_ops(ops);
  return attributes;
}

double time_convolution(Context& context, bool is_int8, std::istream& line, double seconds) {
  std::vector<int64_t> v(16);
  for (int64_t& value : v) line >> value;
  const Types types = read_types(is_int8, line);
  const auto [batch, in, out, groups] = std::tie(v[0], v[1], v[2], v[3]);
  const memory::dims size = {v[4], v[5]}, window = {v[6], v[7]}, strides = {v[8], v[9]};
  const memory::dims before = {v[10], v[11]}, after = {v[12], v[13]}, dilations = {v[14] - 1, v[15] - 1};
  memory::dims target = {batch, out};
  for (size_t i = 0; i < 2; ++i) {
    const int64_t reach = (window[i] - 1) * (dilations[i] + 1) + 1;
    target.push_back((size[i] + before[i] + after[i] - reach) / strides[i] + 1);
  }
  memory::dims weights = {out / groups, in / groups, window[0], window[1]};
  if (groups > 1) weights.insert(weights.begin(), groups);
  const dnnl::convolution_forward::desc desc(dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_auto,
                                             any_layout({batch, in, size[0], size[1]}, types.source),
                                             any_layout(weights, types.weights),
                                             memory::desc({out}, memory::data_type::f32, memory::format_tag::a),
                                             any_layout(target, types.target), strides, dilations, before, after);
  const dnnl::convolution_forward::primitive_desc chosen(desc, fused(line, types, out), context.engine);
  return median_ms(context, dnnl::convolution_forward(chosen),
                   {{DNNL_ARG_SRC, filled(context, chosen.src_desc())},
                    {DNNL_ARG_BIAS, filled(context, chosen.bias_desc())},
                    {DNNL_ARG_DST, filled(context, chosen.dst_desc())}},
                   chosen.weights_desc(), seconds);
}

double time_product(Context& context, bool is_int8, std::istream& line, double seconds) {
  int64_t m = 0, n = 0, k = 0;
  line >> m >> n >> k;
  const Types types = read_types(is_int8, line);
  const auto plain = [](const memory::dims& dims, Type type) {
    return memory::desc(dims, type, memory::format_tag::ab);
  };
  const dnnl::matmul::desc desc(plain({m, k}, types.source), any_layout({k, n}, types.weights),
                                plain({m, n}, types.target));
  const dnnl::matmul::primitive_desc chosen(desc, fused(line, types, n), context.engine);
  return median_ms(
      context, dnnl::matmul(chosen),
      {{DNNL_ARG_SRC, filled(context, chosen.src_desc())}, {DNNL_ARG_DST, filled(context, chosen.dst_desc())}},
      chosen.weights_desc(), seconds);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: onednn_layers SECONDS <layers\n";
    return 2;
  }
  const double seconds = std::stod(argv[1]);
  Context context;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    const bool is_conv = kind == "conv" || kind == "conv_int8", is_int8 = kind == "conv_int8" || kind == "gemm_int8";
    if (!is_conv && !is_int8 && kind != "gemm") {
      std::cerr << "onednn_layers: expected conv, conv_int8, gemm or gemm_int8: " << text << "\n";
      return 2;
    }
    const auto time = is_conv ? time_convolution : time_product;
    std::cout << time(context, is_int8, line, seconds) << std::endl;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "onednn_layers: " << error.what() << "\n";
  return 1;
}
