#include "ops/resize/resize_mixed.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "ops/resize/mixed_picture.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

MixTerms mix_terms_of(const ResizeMode& mode, const ResizeAxis& axis) {
  MixTerms mix;
  if (is_kept(axis)) {  // whatever the coordinates
    mix.places.resize(static_cast<size_t>(axis.in));
    std::iota(mix.places.begin(), mix.places.end(), 0);
    mix.weights.assign(mix.places.size(), 1);
    return mix;
  }
  const std::vector<ResizeTerms> sums = resize_terms(mode, axis);
  bool makes_one = true;
  for (const ResizeTerms& terms : sums) {
    double sum = 0;
    for (const ResizeTerm& term : terms) sum += term.weight;
    makes_one = makes_one && std::abs(sum - 1) < 1e-12;
    mix.terms = std::max(mix.terms, static_cast<int>(terms.size()));
  }
  mix.blends = mix.terms == 2 && makes_one;
  for (const ResizeTerms& terms : sums) {
    for (size_t i = 0; i < static_cast<size_t>(mix.terms); ++i) {
      mix.places.push_back(static_cast<int32_t>(terms[i < terms.size() ? i : 0].index));
      mix.weights.push_back(i < terms.size() ? static_cast<float>(terms[i].weight) : 0.0F);
    }
  }
  return mix;
}

MixElement element_of(DType dtype) {
  return dtype == DType::u8 ? MixElement::u8 : dtype == DType::i8 ? MixElement::i8 : MixElement::f32;
}

// One or two neighbouring axes, [begin, end), that are resized together.
struct AxisPair {
  size_t begin, end;
};

// The last axes as pairs: what lies before is alone in the first step, where there is least to do.
std::vector<AxisPair> pairs_of(const std::vector<ResizeAxis>& axes) {
  std::vector<AxisPair> pairs;
  for (size_t end = axes.size(); end > 0; --end) {
    if (is_kept(axes[end - 1])) continue;
    const bool is_pair = end > 1 && !is_kept(axes[end - 2]);
    pairs.insert(pairs.begin(), {end - (is_pair ? 2 : 1), end});
    end -= is_pair ? 1 : 0;
  }
  if (pairs.empty()) pairs.push_back({axes.size() - 1, axes.size()});
  return pairs;
}

// How a step sees the tensor between the pairs before and behind it. `block`: of channels, or 1.
MixedPicture::Extents extents_at(const std::vector<ResizeAxis>& axes, const AxisPair& pair, int64_t block) {
  MixedPicture::Extents extents;
  for (size_t i = 0; i < pair.begin; ++i) {
    extents.planes *= block > 1 && i == 1 ? (axes[i].out + block - 1) / block : axes[i].out;
  }
  for (size_t i = pair.end; i < axes.size(); ++i) extents.lanes *= axes[i].in;
  extents.lanes *= block;
  extents.columns = axes[pair.end - 1].in;
  if (pair.end - pair.begin == 2) extents.rows = axes[pair.begin].in;
  return extents;
}

std::shared_ptr<const MixedPicture> picture_of(Isa isa, const ResizeMode& mode, const std::vector<ResizeAxis>& axes,
                                               const AxisPair& pair, MixedPicture::Extents extents,
                                               const MixedPicture::Elements& elements) {
  const MixTerms last = mix_terms_of(mode, axes[pair.end - 1]);
  if (pair.end - pair.begin == 2) {
    return std::make_shared<MixedPicture>(isa, extents, mix_terms_of(mode, axes[pair.begin]), last, elements);
  }
  if (extents.lanes < kShortPixel) {
    std::swap(extents.planes, extents.rows);
    return std::make_shared<MixedPicture>(isa, extents, std::nullopt, last, elements);
  }
  // Whole rows of what lies behind.
  std::swap(extents.rows, extents.columns);
  return std::make_shared<MixedPicture>(isa, extents, last, std::nullopt, elements);
}

bool is_known(const TensorType& type, const TensorType& result, const std::vector<ResizeAxis>& axes) {
  const bool has_bytes = type.dtype == DType::u8 || type.dtype == DType::i8;
  if (axes.empty() || type.layout != result.layout || (type.dtype != DType::f32 && !has_bytes)) return false;
  const int block = type.layout.channel_block;
  if (type.layout != Layout{.channel_block = block}) return false;
  if (block != 0 && (has_bytes || axes.size() < 3 || !is_kept(axes[0]) || !is_kept(axes[1]))) return false;
  // Single elements of a row are reached by 31 bits.
  constexpr double kMostElements = 1 << 28;
  double lanes = std::max(block, 1);
  for (size_t i = axes.size(); i-- > 0 && lanes < static_cast<double>(kShortPixel);) {
    lanes *= static_cast<double>(std::max(axes[i].in, axes[i].out));
    if (is_kept(axes[i])) continue;
    if (lanes > kMostElements) return false;
    break;
  }
  return std::all_of(axes.begin(), axes.end(), [](const ResizeAxis& axis) { return axis.in <= INT32_MAX; });
}

void add_picture(LowerContext& context, std::shared_ptr<const MixedPicture> picture, const std::string& mode,
                 BufferId from, BufferId to) {
  const BufferId scratch = context.thread_scratch(picture->scratch_bytes());
  Step step{.kernel = "resize " + mode + ", " + picture->text(), .reads = {from, scratch}, .writes = {to, scratch}};
  step.bytes = picture->bytes();
  step.flop = picture->flop();
  const int threads = std::max(worthwhile_movers(step.bytes, context.target.threads),
                               worthwhile_threads(step.flop, context.target.threads));
  step.threads = static_cast<int>(std::min<int64_t>(threads, picture->row_count()));
  step.run = [picture = std::move(picture), from, to, scratch](const StepArgs& args) {
    picture->run(args.at<const std::byte>(from), args.at<std::byte>(to), args.own<std::byte>(scratch),
                 split_evenly(picture->row_count(), args.share, args.shares));
  };
  context.add(std::move(step));
}

}  // namespace

bool add_mixed_resize(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes) {
  const TensorType &type = context.input_type(0), &result = context.output_type(0);
  if (!is_known(type, result, axes)) return false;
  if (result.storage_bytes() == 0) return true;
  const int64_t block = std::max(type.layout.channel_block, 1);
  const std::vector<AxisPair> pairs = pairs_of(axes);
  BufferId from = context.buffer(context.input(0));
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool is_first = i == 0, is_last = i + 1 == pairs.size();
    const MixElement middle = MixElement::f32, ends = element_of(type.dtype);
    const MixedPicture::Extents extents = extents_at(axes, pairs[i], block);
    auto picture = picture_of(context.target.isa, mode, axes, pairs[i], extents,
                              {is_first ? ends : middle, is_last ? ends : middle});
    const auto floats = [&] {
      return context.scratch(checked_multiply(static_cast<size_t>(picture->row_count()), picture->float_row_bytes()));
    };
    const BufferId to = is_last ? context.buffer(context.output(0)) : floats();
    add_picture(context, std::move(picture), mode.mode, from, to);
    from = to;
  }
  return true;
}

}  // namespace lathe
