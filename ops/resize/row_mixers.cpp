#include "ops/resize/row_mixers.h"

namespace lathe {
namespace {

MixTerms element_terms(const MixTerms& pixels, int64_t lanes) {
  if (lanes == 1) return pixels;
  MixTerms elements{.terms = pixels.terms, .blends = pixels.blends, .places = {}, .weights = {}};
  const auto each = static_cast<size_t>(pixels.terms);
  for (size_t first = 0; first < pixels.places.size(); first += each) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (size_t at = first; at < first + each; ++at) {
        elements.places.push_back(static_cast<int32_t>(pixels.places[at] * lanes + lane));
        elements.weights.push_back(pixels.weights[at]);
      }
    }
  }
  return elements;
}

}  // namespace

ColumnMixer::ColumnMixer(Isa isa, const MixTerms& terms, int64_t columns, int64_t lanes, MixedRoom room)
    : lanes_(lanes), pixels_in_row_(terms.count()) {
  if (lanes >= kShortPixel) {
    for (const int32_t place : terms.places) offsets_.push_back(place * lanes * bytes_of(MixElement::f32));
    alike_ = terms.alike();
    weights_ = terms.weights;
    pixels_ = mix_pixels_kernel(
        mix_pixels_plan(isa, terms, MixElement::f32, MixElement::f32, lanes, lanes * bytes_of(MixElement::f32)));
    return;
  }
  table_ = mix_elements_table(element_terms(terms, lanes), columns * lanes, isa, room);
  elements_ = mix_elements_kernel(table_.plan);
}

void ColumnMixer::run(RowsToRead from, RowsToWrite to, int64_t rows) const noexcept {
  if (pixels_) {
    const MixPixelsArgs args{.from = from.first,
                             .to = to.first,
                             .offsets = offsets_.data(),
                             .weights = weights_.data(),
                             .alike = alike_.data(),
                             .pixels = pixels_in_row_,
                             .elements = lanes_,
                             .stride = lanes_ * bytes_of(MixElement::f32),
                             .rows = rows,
                             .from_row = from.stride,
                             .to_row = to.stride};
    return pixels_(&args);
  }
  const MixElementsArgs args{.from = reinterpret_cast<const float*>(from.first),
                             .to = reinterpret_cast<float*>(to.first),
                             .offsets = table_.offsets.data(),
                             .order = table_.order.data(),
                             .weights = table_.weights.data(),
                             .masks = table_.masks.data(),
                             .sums = table_.sums,
                             .rows = rows,
                             .from_row = from.stride,
                             .to_row = to.stride};
  elements_(&args);
}

RowMixer::RowMixer(Isa isa, const MixTerms& terms, Places places, int64_t elements, MixElement from, MixElement to,
                   int64_t to_stride)
    : terms_(terms.terms), elements_(elements), to_stride_(to_stride), alike_(terms.alike()), weights_(terms.weights) {
  for (const int32_t place : terms.places) {
    offsets_.push_back((places.ring == 0 ? place : place % places.ring) * places.stride);
  }
  kernel_ = mix_pixels_kernel(mix_pixels_plan(isa, terms, from, to, elements, to_stride));
}

void RowMixer::run(const std::byte* from, int64_t row, int64_t count, std::byte* to) const noexcept {
  const MixPixelsArgs args{.from = from,
                           .to = to,
                           .offsets = offsets_.data() + row * terms_,
                           .weights = weights_.data() + row * terms_,
                           .alike = alike_.data() + row,
                           .pixels = count,
                           .elements = elements_,
                           .stride = to_stride_,
                           .rows = 1,
                           .from_row = 0,
                           .to_row = 0};
  kernel_(&args);
}

RowConverter::RowConverter(Isa isa, int64_t elements, MixElement from, MixElement to) : elements_(elements) {
  kernel_ = mix_pixels_kernel(mix_pixels_plan(isa, {}, from, to, elements, 0));
}

void RowConverter::run(RowsToRead from, RowsToWrite to, int64_t rows) const noexcept {
  constexpr int64_t kPlace = 0;
  constexpr float kWeight = 1;
  const MixPixelsArgs args{.from = from.first,
                           .to = to.first,
                           .offsets = &kPlace,
                           .weights = &kWeight,
                           .alike = nullptr,
                           .pixels = 1,
                           .elements = elements_,
                           .stride = 0,
                           .rows = rows,
                           .from_row = from.stride,
                           .to_row = to.stride};
  kernel_(&args);
}

}  // namespace lathe
