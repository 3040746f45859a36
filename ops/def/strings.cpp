// StringConcat, StringSplit, StringNormalizer, RegexFullMatch.
#include <algorithm>
#include <set>
#include <string_view>

#include "ops/pointwise/elementwise.h"
#include "ops/text/regex.h"
#include "ops/text/text_case.h"

namespace lathe::ops {
namespace {

const std::string* texts_of(const ReferenceContext& context, size_t input) {
  const Tensor& tensor = context.inputs[input];
  if (tensor.dtype() != DType::string) {
    context.fail("input " + std::to_string(input) + " is " + std::string(name_of(tensor.dtype())) +
                 ", expected string");
  }
  return tensor.data<std::string>();
}

void require_texts(const InferContext& context) {
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i) || context.input(i).dtype == DType::string) continue;
    context.fail("input " + std::to_string(i) + " is " + std::string(name_of(context.input(i).dtype)) +
                 ", expected string");
  }
}

// ---- StringConcat

void infer_concat(InferContext& context) {
  require_texts(context);
  infer_broadcast(context);
}

void run_concat(ReferenceContext& context) {
  const std::string *a = texts_of(context, 0), *b = texts_of(context, 1);
  const std::vector<Dims> dims = operand_dims(context);
  Tensor result = make_output(context, DType::string, broadcast_dims(context.node, dims));
  auto* out = result.mutable_data<std::string>();
  for (BroadcastRows rows(result.dims(), dims); !rows.done(); rows.next()) {
    for (int64_t i = 0; i < rows.length(); ++i) {
      out[rows.begin() + i] = a[rows.begin(0) + i * rows.stride(0)] + b[rows.begin(1) + i * rows.stride(1)];
    }
  }
  context.outputs[0] = std::move(result);
}

// ---- StringSplit

using Pieces = std::vector<std::string_view>;
constexpr std::string_view kSpaces = " \t\n\v\f\r";

// As Python's str.split(None, most): runs of white space part, and none stands at either end.
Pieces split_at_spaces(std::string_view text, size_t most) {
  Pieces pieces;
  for (size_t at = text.find_first_not_of(kSpaces); at != std::string_view::npos;) {
    const size_t end = pieces.size() < most ? text.find_first_of(kSpaces, at) : std::string_view::npos;
    pieces.push_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    at = end == std::string_view::npos ? end : text.find_first_not_of(kSpaces, end);
  }
  return pieces;
}

Pieces split_at(std::string_view text, std::string_view delimiter, size_t most) {
  Pieces pieces;
  size_t at = 0;
  while (pieces.size() < most) {
    const size_t end = text.find(delimiter, at);
    if (end == std::string_view::npos) break;
    pieces.push_back(text.substr(at, end - at));
    at = end + delimiter.size();
  }
  pieces.push_back(text.substr(at));
  return pieces;
}

void infer_split(InferContext& context) {
  require_texts(context);
  TensorType pieces = context.input(0), counts = context.input(0);
  if (pieces.has_rank) pieces.dims.emplace_back();
  counts.dtype = DType::i64;
  context.set_output(0, std::move(pieces));
  context.set_output(1, std::move(counts));
}

void run_split(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const std::string* texts = texts_of(context, 0);
  const std::string delimiter = context.node.attributes.get_string("delimiter", "");
  const int64_t given = context.node.attributes.get_int("maxsplit", -1);
  const size_t most = given < 0 ? std::string::npos : static_cast<size_t>(given);
  std::vector<Pieces> all;
  size_t longest = 0;
  for (int64_t i = 0; i < input.size(); ++i) {
    all.push_back(delimiter.empty() ? split_at_spaces(texts[i], most) : split_at(texts[i], delimiter, most));
    longest = std::max(longest, all.back().size());
  }
  Dims dims = input.dims();
  dims.push_back(static_cast<int64_t>(longest));
  Tensor pieces = make_output(context, DType::string, dims), counts = make_output(context, DType::i64, input.dims());
  auto* out = pieces.mutable_data<std::string>();
  for (size_t i = 0; i < all.size(); ++i) {
    std::copy(all[i].begin(), all[i].end(), out + i * longest);
    counts.mutable_data<int64_t>()[i] = static_cast<int64_t>(all[i].size());
  }
  context.outputs[0] = std::move(pieces);
  if (context.outputs.size() > 1) context.outputs[1] = std::move(counts);
}

// ---- StringNormalizer

// "en_US", "en_US.UTF-8", "de", "C": the mapping of cases is Unicode's for all of them, but a locale that cannot be is
// an error of the model.
bool is_locale(const std::string& name) {
  if (name.empty() || name == "C" || name == "POSIX" || name.starts_with("C.")) return true;
  const std::string_view tag = std::string_view(name).substr(0, name.find_first_of(".@"));
  const size_t part = tag.find_first_of("_-");
  const std::string_view language = tag.substr(0, part);
  const std::string_view country = part == std::string_view::npos ? "US" : tag.substr(part + 1);
  const auto in = [](char low, char high) { return [=](char c) { return c >= low && c <= high; }; };
  return (language.size() == 2 || language.size() == 3) && country.size() == 2 &&
         std::all_of(language.begin(), language.end(), in('a', 'z')) &&
         std::all_of(country.begin(), country.end(), in('A', 'Z'));
}

enum class CaseChange { none, lower, upper };

template <class Context>
CaseChange case_change(const Context& context) {
  const std::string action = context.node.attributes.get_string("case_change_action", "NONE");
  if (action == "LOWER") return CaseChange::lower;
  if (action == "UPPER") return CaseChange::upper;
  if (action != "NONE") context.fail("attribute case_change_action is '" + action + "'");
  return CaseChange::none;
}

void infer_normalizer(InferContext& context) {
  require_texts(context);
  case_change(context);
  const std::string locale = context.node.attributes.get_string("locale", "");
  if (!is_locale(locale)) context.fail("attribute locale is '" + locale + "', which is no locale");
  TensorType type = context.input(0);
  if (type.has_rank) {
    const bool is_matrix = type.rank() == 2 && (!type.dims[0].known() || type.dims[0].extent == 1);
    if (type.rank() != 1 && !is_matrix) context.fail("input 0 is " + to_string(type) + ", expected [C] or [1,C]");
    type.dims.back() = Dim();
  }
  context.set_output(0, std::move(type));
}

void run_normalizer(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const bool is_matrix = input.rank() == 2 && input.dims()[0] == 1;
  if (input.rank() != 1 && !is_matrix)
    context.fail("input 0 is [" + to_string(input.dims()) + "], expected [C] or [1,C]");
  const CaseChange change = case_change(context);
  const bool is_sensitive = context.node.attributes.get_int("is_case_sensitive", 0) != 0;
  const auto compared = [&](const std::string& text) { return is_sensitive ? text : lower_case(text); };
  std::set<std::string> stopwords;
  for (const std::string& word : context.node.attributes.get_strings("stopwords")) stopwords.insert(compared(word));
  std::vector<std::string> kept;
  const std::string* texts = texts_of(context, 0);
  for (int64_t i = 0; i < input.size(); ++i) {
    if (!stopwords.empty() && stopwords.count(compared(texts[i])) != 0) continue;
    kept.push_back(change == CaseChange::lower   ? lower_case(texts[i])
                   : change == CaseChange::upper ? upper_case(texts[i])
                                                 : texts[i]);
  }
  if (kept.empty()) kept.emplace_back();
  Dims dims = input.dims();
  dims.back() = static_cast<int64_t>(kept.size());
  context.outputs[0] = Tensor::from<std::string>(dims, std::span<const std::string>(kept));
}

// ---- RegexFullMatch

std::string pattern_of(const Node& node) { return node.attributes.get_string("pattern", ""); }

void infer_match(InferContext& context) {
  require_texts(context);
  const Regex checked(pattern_of(context.node));
  infer_same_bool(context);
}

void run_match(ReferenceContext& context) {
  const Regex regex(pattern_of(context.node));
  const std::string* texts = texts_of(context, 0);
  Tensor result = make_output(context, DType::boolean, context.inputs[0].dims());
  for (int64_t i = 0; i < result.size(); ++i) result.mutable_data<bool>()[i] = regex.matches_all_of(texts[i]);
  context.outputs[0] = std::move(result);
}

}  // namespace

std::vector<OpDef> strings_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) { defs.push_back({.schema = std::move(schema)}); };
  add({.name = "StringConcat",
       .since = 20,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_concat,
       .reference = run_concat});
  add({.name = "StringSplit",
       .since = 20,
       .max_outputs = 2,
       .attributes = {{"delimiter", Kind::string}, {"maxsplit", Kind::integer}},
       .infer = infer_split,
       .reference = run_split});
  add({.name = "StringNormalizer",
       .since = 10,
       .attributes = {{"case_change_action", Kind::string},
                      {"is_case_sensitive", Kind::integer},
                      {"locale", Kind::string},
                      {"stopwords", Kind::strings}},
       .infer = infer_normalizer,
       .reference = run_normalizer});
  add({.name = "RegexFullMatch",
       .since = 20,
       .attributes = {{"pattern", Kind::string}},
       .infer = infer_match,
       .reference = run_match});
  return defs;
}

}  // namespace lathe::ops
