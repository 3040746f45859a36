#pragma once
// Where GridSample reads: the elements and weights of a point along each axis; and whole pictures of float32 by groups
// of points.
#include <array>
#include <cstdint>

namespace lathe {

enum class Interpolation { nearest, linear, cubic };
enum class Padding { zeros, border, reflection };

// One axis of one sample: which elements, with which weights. An index of -1 is a zero.
struct Taps {
  int count = 0;
  std::array<int64_t, 4> index{};
  std::array<double, 4> weight{};
};

struct Sampler {
  Interpolation interpolation;
  Padding padding;
  bool aligns_corners;

  // `normalized`: from -1 to 1 over the axis.
  Taps taps(double normalized, int64_t extent) const;

 private:
  int64_t element(int64_t i, int64_t extent, double low, double high) const;
};

// Points in groups, each with its taps once for all channels.
class PictureSampler {
 public:
  struct Extents {
    int64_t images, channels, height, width, points;  // points: of each image
  };
  PictureSampler(const Sampler& sampler, const Extents& extents, int threads)
      : sampler_(sampler), extents_(extents), threads_(threads) {}

  int64_t taps() const;                                         // of each point
  int64_t tasks() const { return extents_.images * groups(); }  // groups of all images
  // Group `task`: of x, [images, channels, height, width], and the grid, [images, points, 2] of float or double, to
  // [images, channels, points].
  template <class Place>
  void run(const float* x, const Place* grid, float* out, int64_t task) const noexcept;

 private:
  struct Group;
  bool reads_pairs() const;
  int64_t group_points() const;
  int64_t groups() const { return (extents_.points + group_points() - 1) / group_points(); }
  template <class Place>
  void find_taps(const Place* grid, int64_t count, Group& group) const;
  template <class Place>
  void find_pairs(const Place* grid, int64_t count, Group& group) const;
  void mix_channel(const Group& group, const float* plane, int64_t count, float* to) const;

  Sampler sampler_;
  Extents extents_;
  int threads_;
};

}  // namespace lathe
