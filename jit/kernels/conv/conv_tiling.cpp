#include "jit/kernels/conv/conv_tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "jit/kernel.h"

namespace lathe {
namespace {

struct Pixel {
  int64_t y, x;
};

int32_t offset32(int64_t bytes) {
  // Half of the range: the emitter adds positions of its own.
  if (std::abs(bytes) > std::numeric_limits<int32_t>::max() / 2) throw JitError("convolution rows are too far apart");
  return static_cast<int32_t>(bytes);
}

// True when `next` may follow `last` in one run: the same pixels, each one element further.
bool continues(const ConvTapRun& last, const ConvTapRun& next) {
  if (last.index + last.run != next.index || last.uses.size() != next.uses.size()) return false;
  for (size_t i = 0; i < next.uses.size(); ++i) {
    if (next.uses[i].pixel != last.uses[i].pixel) return false;
    if (next.uses[i].source != last.uses[i].source + 4 * last.run) return false;
  }
  return true;
}

ConvTileShape tile_shape(const ConvShape& shape, const std::vector<Pixel>& pixels, int out_lanes) {
  ConvTileShape tile;
  tile.pixels = static_cast<int>(pixels.size());
  tile.taps_in_window = shape.taps();
  const int64_t in_bytes = shape.lanes * 4, out_bytes = out_lanes * 4;
  for (const Pixel& p : pixels) {
    const int64_t dy = (p.y - pixels[0].y) * shape.y.out_step, dx = (p.x - pixels[0].x) * shape.x.out_step;
    tile.stores.push_back(offset32((dy * shape.x.out_extent + dx) * out_bytes));
  }
  int index = 0;
  for (const ConvTap& ty : shape.y.taps) {
    for (const ConvTap& tx : shape.x.taps) {
      ConvTapRun tap{index++, 1, {}};
      for (size_t i = 0; i < pixels.size(); ++i) {
        if (!shape.y.is_inside(pixels[i].y, ty) || !shape.x.is_inside(pixels[i].x, tx)) continue;
        const int64_t dy = (pixels[i].y - pixels[0].y) * shape.y.stride + ty.offset;
        const int64_t dx = (pixels[i].x - pixels[0].x) * shape.x.stride + tx.offset;
        tap.uses.push_back({static_cast<int>(i), offset32((dy * shape.x.in + dx) * in_bytes)});
      }
      if (tap.uses.empty()) continue;
      if (shape.lanes == 1 && !tile.taps.empty() && continues(tile.taps.back(), tap)) {
        ++tile.taps.back().run;
      } else {
        tile.taps.push_back(std::move(tap));
      }
    }
  }
  return tile;
}

ConvTile place(const ConvShape& shape, const Pixel& first, int shape_index, int out_lanes) {
  const int64_t source = (first.y * shape.y.stride * shape.x.in + first.x * shape.x.stride) * shape.lanes * 4;
  const int64_t y = first.y * shape.y.out_step + shape.y.out_first, x = first.x * shape.x.out_step + shape.x.out_first;
  return {shape_index, source, (y * shape.x.out_extent + x) * out_lanes * 4};
}

void find_runs(std::vector<ConvTile>& tiles) {
  for (size_t i = tiles.size(); i-- > 1;) {
    const ConvTile& next = tiles[i];
    ConvTile& tile = tiles[i - 1];
    if (tile.shape != next.shape) continue;
    tile.source_step = next.source - tile.source;
    tile.target_step = next.target - tile.target;
    const bool goes_on = tile.source_step == next.source_step && tile.target_step == next.target_step;
    tile.alike = next.alike > 1 && goes_on ? next.alike + 1 : 2;
  }
}

// Parts of one axis with the same size and the same valid taps get the same number.
std::vector<int> classify(const ConvAxis& axis, const std::vector<ConvPart>& parts) {
  std::map<std::string, int> classes;
  std::vector<int> numbers;
  for (const ConvPart& part : parts) {
    numbers.push_back(classes.try_emplace(valid_taps(axis, part), static_cast<int>(classes.size())).first->second);
  }
  return numbers;
}

ConvTiling rectangles(const ConvShape& shape, int rows, int cols, int out_lanes) {
  ConvTiling tiling;
  const std::vector<ConvPart> row_parts = sorted_parts(shape.y.out, rows);
  const std::vector<ConvPart> col_parts = sorted_parts(shape.x.out, cols);
  const std::vector<int> row_class = classify(shape.y, row_parts), col_class = classify(shape.x, col_parts);
  std::map<std::pair<int, int>, int> known;
  for (size_t r = 0; r < row_parts.size(); ++r) {
    for (size_t c = 0; c < col_parts.size(); ++c) {
      const Pixel first{row_parts[r].begin, col_parts[c].begin};
      const auto [at, is_new] = known.try_emplace({row_class[r], col_class[c]}, static_cast<int>(tiling.shapes.size()));
      if (is_new) {
        std::vector<Pixel> pixels;
        for (int64_t y = 0; y < row_parts[r].size; ++y) {
          for (int64_t x = 0; x < col_parts[c].size; ++x) pixels.push_back({first.y + y, first.x + x});
        }
        tiling.shapes.push_back(tile_shape(shape, pixels, out_lanes));
      }
      tiling.tiles.push_back(place(shape, first, at->second, out_lanes));
    }
  }
  return tiling;
}

ConvTiling runs(const ConvShape& shape, int most, int out_lanes) {
  ConvTiling tiling;
  for (const ConvPart& part : balanced_parts(shape.y.out * shape.x.out, most)) {
    std::vector<Pixel> pixels;
    for (int64_t i = part.begin; i < part.begin + part.size; ++i) {
      pixels.push_back({i / shape.x.out, i % shape.x.out});
    }
    ConvTileShape tile = tile_shape(shape, pixels, out_lanes);
    const auto found = std::find(tiling.shapes.begin(), tiling.shapes.end(), tile);
    const auto index = static_cast<int>(found - tiling.shapes.begin());
    if (found == tiling.shapes.end()) tiling.shapes.push_back(std::move(tile));
    tiling.tiles.push_back(place(shape, pixels[0], index, out_lanes));
  }
  return tiling;
}

struct Digest {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  void add(uint64_t value) {
    a = (a ^ value) * 0x100000001b3;
    a ^= a >> 29;
    b = (b + value) * 0xbf58476d1ce4e5b9;
    b ^= b >> 32;
  }
};

std::string to_string(const ConvAxis& axis) {
  std::string text = std::to_string(axis.in) + ">" + std::to_string(axis.out) + "s" + std::to_string(axis.stride) + "[";
  for (const ConvTap& tap : axis.taps) text += std::to_string(tap.kernel) + "@" + std::to_string(tap.offset) + " ";
  text.back() = ']';
  if (axis.out_step != 1) {
    text += "every" + std::to_string(axis.out_step) + "from" + std::to_string(axis.out_first);
  }
  return text + "of" + std::to_string(axis.out_extent);
}

}  // namespace

std::vector<ConvPart> balanced_parts(int64_t count, int64_t most) {
  std::vector<ConvPart> parts;
  const int64_t n = (count + most - 1) / most;
  for (int64_t i = 0; i < n; ++i) parts.push_back({count * i / n, count * (i + 1) / n - count * i / n});
  return parts;
}

std::vector<ConvPart> sorted_parts(int64_t count, int64_t most) {
  std::vector<ConvPart> parts;
  const int64_t n = (count + most - 1) / most;
  int64_t begin = 0;
  for (int64_t i = 0; i < n; ++i) {
    parts.push_back({begin, count / n + (i < count % n ? 1 : 0)});
    begin += parts.back().size;
  }
  return parts;
}

std::string valid_taps(const ConvAxis& axis, const ConvPart& part) {
  std::string text = std::to_string(part.size) + ":";
  for (int64_t i = part.begin; i < part.begin + part.size; ++i) {
    for (const ConvTap& tap : axis.taps) text += axis.is_inside(i, tap) ? '1' : '0';
  }
  return text;
}

ConvTiling make_conv_tiling(const ConvShape& shape, int rows, int cols, int out_lanes) {
  ConvTiling tiling = rows == 0 ? runs(shape, cols, out_lanes) : rectangles(shape, rows, cols, out_lanes);
  find_runs(tiling.tiles);
  return tiling;
}

std::string key_of(std::span<const ConvTileShape> shapes) {
  Digest digest;
  for (const ConvTileShape& shape : shapes) {
    digest.add(static_cast<uint64_t>(shape.pixels));
    digest.add(static_cast<uint64_t>(shape.taps_in_window));
    for (int32_t store : shape.stores) digest.add(static_cast<uint32_t>(store));
    digest.add(shape.taps.size());
    for (const ConvTapRun& tap : shape.taps) {
      digest.add(static_cast<uint64_t>(tap.index));
      digest.add(static_cast<uint64_t>(tap.run));
      digest.add(tap.uses.size());
      for (const ConvUse& use : tap.uses) {
        digest.add(static_cast<uint64_t>(use.pixel));
        digest.add(static_cast<uint32_t>(use.source));
      }
    }
  }
  return fmt::format("{:016x}{:016x}", digest.a, digest.b);
}

std::string to_string(const ConvShape& shape) {
  return "y" + to_string(shape.y) + " x" + to_string(shape.x) + " c" + std::to_string(shape.lanes);
}

}  // namespace lathe
