#pragma once
// What runs of a model that grows have in common.
#include <gtest/gtest.h>

#include <vector>

#include "lathe/error.h"
#include "lathe/session.h"

namespace lathe::testing {

inline void expect_near(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].dims(), expected[i].dims()) << "output " << i;
    for (int64_t k = 0; k < got[i].size(); ++k)
      ASSERT_NEAR(got[i].data<float>()[k], expected[i].data<float>()[k], 2e-4F) << "output " << i << " element " << k;
  }
}

// The results, which are the same in buffers of the caller; a buffer of another shape is refused.
inline std::vector<Tensor> run_into_buffers(const Session& session, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> expected = session.run(inputs), buffers;
  for (const Tensor& tensor : expected) buffers.emplace_back(tensor.dtype(), tensor.dims());
  session.run_into(inputs, buffers);
  expect_near(buffers, expected);
  buffers.back() = Tensor(DType::f32, {1});
  EXPECT_THROW(session.run_into(inputs, buffers), Error);
  return expected;
}

}  // namespace lathe::testing
